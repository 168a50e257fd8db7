"""Metadata as the coordination store keeps it, and what a broker reads from there."""
