"""The server: storage, coordination, runtime and gRPC services around the core's machines."""
