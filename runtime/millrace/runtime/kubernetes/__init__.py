"""The Kubernetes API server: how to reach it, requests, the names of its objects, and a Lease."""
