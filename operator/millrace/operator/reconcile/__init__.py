"""Carries out `model` and `plan`: one resource at a time, as often as necessary."""
