"""Which broker a client asks about a partition, and when.

Producer and consumer use `router`, which finds leaders and requests connections; `route` is the
state of one partition.
"""
