"""A member of a group that polls until it is killed: `python -m bench.loads.group_member ADDRESS
GROUP TOPIC`."""

import sys

from millrace.client import SyncConsumer


def main() -> None:
    """Join and read."""
    address, group, topic = sys.argv[1:]
    with SyncConsumer(address, group=group) as consumer:
        consumer.subscribe([topic])
        while True:
            consumer.poll(100)


if __name__ == "__main__":
    main()
