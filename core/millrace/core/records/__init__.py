"""The record batch: producers seal it, brokers store it, readers open it. See docs/format.md."""
