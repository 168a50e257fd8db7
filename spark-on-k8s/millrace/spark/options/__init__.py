"""Options of the source and of the sink: one table for parser and documents."""
