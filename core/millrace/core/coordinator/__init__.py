"""Machines whose state is a log: consumer groups, and the positions that readers keep."""
