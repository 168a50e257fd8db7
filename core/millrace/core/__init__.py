"""The pure heart of Millrace: formats, logs, replication, metadata and client protocols.

Nothing here does I/O, reads a clock, draws a random number or starts a thread. Every machine takes
events with the time they happened at, and returns effects in the order that a shell must perform
them. That is what lets one seed replay a whole cluster.
"""
