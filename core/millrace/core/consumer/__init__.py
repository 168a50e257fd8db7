"""The consumer as a machine: which offset comes next, from whom, and how much may be on its way."""
