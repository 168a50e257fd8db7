"""What the controller has decided, stored or not yet."""
