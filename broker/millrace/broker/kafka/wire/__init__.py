"""Kafka's bytes: frames, messages by its schemas or by hand, and its error codes."""
