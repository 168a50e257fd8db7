"""What a replica remembers about its log beside the batches: leader epochs, producers,
and the transactions that they have open.
"""
