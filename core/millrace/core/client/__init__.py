"""The machines of a client: producer, consumer, and the routing that both share."""
