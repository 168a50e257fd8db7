"""Positions kept under a name: where a reader began, and how far it has read (`__positions`)."""
