"""Runs the replicas of this broker: their machines on the event loop, their files on threads."""
