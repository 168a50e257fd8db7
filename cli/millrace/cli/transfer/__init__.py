"""Records on their way: read from topics, produced to topics, and notices when they stall."""
