"""The shell around the core's machines: threads, memory, files and the event loop."""
