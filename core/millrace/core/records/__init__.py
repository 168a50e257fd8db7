"""The record batch: what producers seal, brokers store and readers open. See docs/format.md."""
