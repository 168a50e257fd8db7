"""Transactions: which are open, what became of them, and who must still be told."""
