"""Where the cluster's metadata lies: versioned objects under compare-and-swap, and one lease."""
