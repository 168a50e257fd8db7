"""What to do next: from what was found and what should be, pure decisions, one step at a time."""
