"""The API server: objects by kind and name."""
