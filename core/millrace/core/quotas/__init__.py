"""Quotas: how much clients and topics may send, read and cost. `quota.py` has the idea."""
