"""Runs the coordinators of groups and positions over the partitions that hold their state."""
