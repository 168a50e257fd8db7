"""The cluster as clients see it: connections, look-ups, and the wire's messages."""
