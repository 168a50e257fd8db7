"""Reassignments: their plan, queue and progress."""
