"""Consumer groups: who reads which partition. `membership.py` has the idea."""
