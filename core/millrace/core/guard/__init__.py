"""Who calls, and what they may do: identities, operations on resources, rules, decisions."""
