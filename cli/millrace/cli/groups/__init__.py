"""What commands ask and tell about consumer groups."""
