"""Logs and metrics of a running broker."""
