"""A plan of replicas for partitions, as a JSON file that a person can read and edit.

    {"version": 1, "partitions": [
      {"topic": "flights", "partition": 0, "replicas": [1, 2, 0], "was": [0, 1, 2]}
    ]}

The first of `replicas` is the preferred leader. `was` is only for the reader: exchanged with
`replicas` it makes the plan back.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.cli.console.failures import Failure
from millrace.cli.files.json_document import parse_document
from millrace.core.topics import PartitionName

_VERSION = 1
_HINT = "`millrace reassign plan` writes one to start from"


def document(
    plan: Mapping[PartitionName, Sequence[int]], before: Mapping[PartitionName, Sequence[int]]
) -> dict[str, Any]:
    """Return the document for a plan."""
    return {
        "version": _VERSION,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "replicas": list(replicas),
                "was": list(before[topic, partition]),
            }
            for (topic, partition), replicas in sorted(plan.items())
        ],
    }


def text(plan: dict[str, Any]) -> str:
    """Return a document with one line for each partition."""
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in plan["partitions"])
    body = f"[\n{lines}\n]" if lines else "[]"
    return f'{{"version": {plan["version"]}, "partitions": {body}}}'


def parse(data: bytes, name: str) -> dict[PartitionName, list[int]]:
    """Return the replicas of each partition.

    Args:
        name: of the file, for the message.

    Raises:
        Failure: it is no such document; names the place.
    """
    found = parse_document(data, name, _HINT)
    if not isinstance(found, dict) or not isinstance(found.get("partitions"), list):
        raise Failure(f'{name}: there is no list "partitions"', _HINT)
    if found.get("version") != _VERSION:
        raise Failure(f"{name}: its version is {found.get('version')!r}, not {_VERSION}", _HINT)
    plan: dict[PartitionName, list[int]] = {}
    for number, entry in enumerate(found["partitions"]):
        problem = _problem(entry)
        if problem:
            raise Failure(f'{name}: entry {number + 1} of "partitions": {problem}', _HINT)
        place = entry["topic"], entry["partition"]
        if place in plan:
            raise Failure(f"{name}: {place[0]} {place[1]} is named twice", "keep one of them")
        plan[place] = entry["replicas"]
    return plan


def _problem(entry: object) -> str:
    if not isinstance(entry, dict):
        return "it is no object"
    if not isinstance(entry.get("topic"), str) or not entry["topic"]:
        return '"topic" is to be a name'
    if not _is_number(entry.get("partition")):
        return '"partition" is to be a number from 0'
    replicas = entry.get("replicas")
    if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
        return '"replicas" is to be a list of broker ids, the preferred leader first'
    if len(set(replicas)) < len(replicas):
        return f'"replicas" names a broker twice: {replicas}'
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
