"""How a partition's replicas agree: the leader's side of it."""
