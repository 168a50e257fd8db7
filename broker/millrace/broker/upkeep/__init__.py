"""What keeps disks and the process well: cleaning, tiers, retention, watches, limits."""
