"""What people and Prometheus see of a running broker."""
