"""What a broker asks of others: its session with the controller, and fetches from leaders."""
