"""How calls travel between processes: gRPC for everyone, DRPC for speed, the same calls in both."""
