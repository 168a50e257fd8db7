"""Where replicas and leaderships should be: pure functions of counts, without state."""
