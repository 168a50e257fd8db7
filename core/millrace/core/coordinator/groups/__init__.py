"""Consumer groups: they assign partitions to members. Begin with `membership.py`."""
