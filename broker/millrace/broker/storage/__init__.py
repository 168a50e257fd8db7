"""Batches in files: segments, indexes, checkpoints, recovery and directories. See log.py first.

Synchronous, without a clock, and over one small `FileSystem`, so that a simulated disk runs the
same code. Whoever calls decides on threads.
"""
