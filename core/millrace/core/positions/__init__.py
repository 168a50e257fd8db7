"""Positions kept under a name: where a reader begins, and how far it has come (`__positions`)."""
