"""What to do next: pure decisions from the present and the wanted state, one step at a time."""
