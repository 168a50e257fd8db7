"""Kafka's protocol: a listener for its clients, over the services that gRPC has."""
