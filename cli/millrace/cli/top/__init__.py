"""`millrace top`: a cluster at a glance, again and again."""
