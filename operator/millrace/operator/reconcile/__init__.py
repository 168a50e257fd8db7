"""Does what `model` and `plan` say: one resource at a time, as often as it takes."""
