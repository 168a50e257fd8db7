"""Requests to coordinators: groups of both protocols, their positions, transactions."""
