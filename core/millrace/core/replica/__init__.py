"""One replica of a partition: its log, its part in replication; what is read, cleaned, moved."""
