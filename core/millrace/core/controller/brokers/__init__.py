"""Which brokers are registered, live, or about to stop."""
