"""The store of the metadata: versioned objects with compare-and-swap, and one lease."""
