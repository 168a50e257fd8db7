"""Millrace's wire: the `.proto` files, their generated stubs, and the hot messages' codec."""
