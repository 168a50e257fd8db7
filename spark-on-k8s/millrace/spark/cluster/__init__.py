"""What Spark asks a cluster, and the clients that its workers share."""
