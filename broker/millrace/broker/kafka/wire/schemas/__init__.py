"""Schemas of Kafka's messages that kafka-python lacks, in the form that it reads."""
