"""Requests of administrators: topics, settings, quotas, replicas."""
