"""What the cluster knows of itself: brokers, topics and who leads what."""
