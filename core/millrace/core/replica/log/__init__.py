"""What a replica remembers about its log beside the batches: leader epochs and producers."""
