"""The records that all sides of a comparison send: random, incompressible, the same file for each.

Kafka's Java tool reads payloads from a text file, one a line. So the bytes are 7-bit ASCII without
the line feed: UTF-8 decoding leaves them unchanged, and at an entropy of 6.99 bits a byte a codec
can save nothing.
"""

from pathlib import Path

import numpy

FILE_BYTES = 8 << 20
SEED = 20251
KEY_BYTES = 8


def write_random_records(path: Path, record_bytes: int) -> Path:
    """Write about 8 MiB of distinct random records of `record_bytes` each; return `path`."""
    rows = FILE_BYTES // record_bytes
    letters = numpy.random.default_rng(SEED).integers(0, 127, (rows, record_bytes), numpy.uint8)
    letters[letters == ord("\n")] = 127
    lines = numpy.full((rows, record_bytes + 1), ord("\n"), numpy.uint8)
    lines[:, :-1] = letters
    path.write_bytes(lines.tobytes()[:-1])
    return path


def write_event_records(path: Path, record_bytes: int) -> Path:
    """Write about 8 MiB of JSON events of `record_bytes` each, which compress as logs do."""
    rng = numpy.random.default_rng(SEED)
    actions = ["view", "cart", "purchase", "search", "login", "logout", "rate", "share"]
    pages = [f"/catalogue/item-{number:05d}" for number in rng.integers(0, 99999, 200)]
    lines = []
    for number in range(FILE_BYTES // record_bytes):
        event = (
            f'{{"event":{number},"user":"u{rng.integers(0, 1_000_000):07d}",'
            f'"action":"{actions[rng.integers(len(actions))]}",'
        )
        while len(event) < record_bytes - 2:
            event += f'"page":"{pages[rng.integers(len(pages))]}","ms":{rng.integers(0, 5000)},'
        lines.append(event[: record_bytes - 2].encode() + b'"}')
    path.write_bytes(b"\n".join(lines))
    return path


def read_records(path: Path) -> list[bytes]:
    """Return the records of a file as Python `bytes` objects."""
    return path.read_bytes().split(b"\n")


def keys_for(records: list[bytes]) -> list[bytes]:
    """Return one key of `KEY_BYTES` for each record, the same on every side."""
    return [b"%0*d" % (KEY_BYTES, number) for number in range(len(records))]
