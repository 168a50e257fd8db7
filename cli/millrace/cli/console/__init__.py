"""The process and its terminal: streams, signals, tables, progress, confirmations, failures."""
