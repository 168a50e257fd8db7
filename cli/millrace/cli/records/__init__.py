"""Records on their way from files into topics and back, as Arrow columns."""
