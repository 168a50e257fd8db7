"""The coordination store of a cluster on Kubernetes: internal custom resources and a Lease."""
