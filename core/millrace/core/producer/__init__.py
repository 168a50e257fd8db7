"""The producer as machines: records to partitions, partitions to batches, batches to acknowledged.

`intake` holds what was sent and has no partition yet; `distributor` gives it partitions, column-wise,
and gathers batches; `sender` numbers, sends and repeats them so that each lands once and in order.
"""
