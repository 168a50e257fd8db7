"""Requests to other brokers: the session with the controller, and fetches from leaders."""
