"""The controller where it runs, and every broker's session with it."""
