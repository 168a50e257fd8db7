"""The producer as machines: records get partitions, become batches, and are acknowledged.

`intake` holds records without a partition; `distributor` gives them partitions, by column, and
gathers batches; `sender` sends and repeats batches until each has its outcome; `sequences` numbers
those of one partition, so that each is appended once and in order.
"""
