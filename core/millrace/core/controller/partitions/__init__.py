"""Leaders, in-sync replicas and moves of partitions."""
