"""The gRPC services: messages in, calls to the runtime, messages out."""
