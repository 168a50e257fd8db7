"""A cluster on this machine, and its web page."""
