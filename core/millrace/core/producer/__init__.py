"""The producer as machines: records to partitions, partitions to batches, batches to acknowledged.

`intake` holds what was sent and has no partition yet; `distributor` gives it partitions, by column,
and gathers batches; `sender` numbers, sends and repeats them: each lands once and in order.
"""
