"""Reads topics into Spark, in batches and as a stream."""
