"""Batches in files: segments, indexes, checkpoints, recovery and directories. See `log` first.

Synchronous, without a clock, and over one small `FileSystem`, so that a simulated disk runs the
same code. The caller decides on threads.
"""
