"""What commands ask and tell about the records of topics."""
