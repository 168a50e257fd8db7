"""What people write on the command line: partitions, topics, offsets and times."""
