"""The pages: each asks the brokers for what it shows, and writes it."""
