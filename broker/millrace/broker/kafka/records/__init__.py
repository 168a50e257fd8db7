"""Requests about records: Produce, Fetch, and the offsets of a log."""
