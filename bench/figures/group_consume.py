"""Four members of a group in four processes, 1 KB records: records/s over confluent-kafka-python's
group on Apache Kafka.
"""

from bench.comparisons.consume import compare_groups
from bench.measure import figure

if __name__ == "__main__":
    figure("group_consume", unit="times", goal=">= 1.2", measure=compare_groups)
