"""How readers follow a log: the broker's side of a fetch session."""
