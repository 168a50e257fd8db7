"""The consumer as a machine: the next offset, the broker to read from, and the bytes in flight.

`fetcher` keeps positions and moves partitions through the states of `fetch_state`; `sessions` holds
what came, and grants credit for more.
"""
