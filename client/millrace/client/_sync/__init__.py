"""The same clients for code without an event loop."""
