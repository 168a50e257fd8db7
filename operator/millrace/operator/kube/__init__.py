"""The API server: objects by kind and name, over the official client's log-in and transport."""
