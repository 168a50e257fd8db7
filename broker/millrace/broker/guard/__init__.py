"""Finds out who calls, and refuses what that caller may not do. `guard.py` has the idea."""
