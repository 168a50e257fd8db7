"""Metadata objects in the coordination store: one compact canonical JSON text each.

    {"checksum":"1f2e3d4c","object":{"controller_epoch":3,"format":1,"key":...,"state":...,"version":7}}

The checksum is the CRC-32C of the inner object's bytes, in hexadecimal. Key, version and controller
epoch are inside it, so an object restored under another name or number is detected. The store also
keeps version and controller epoch beside the text: it refuses a write whose version is not the next
one, or whose controller epoch is lower than the stored one (P36).

Canonical: keys sorted, no spaces, ASCII. The same state is always the same bytes, and a write whose
answer was lost is recognised by comparing them.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

import crc32c

from millrace.core.errors import StorageError
from millrace.core.ids import ControllerEpoch

FORMAT: Final = 1

_HEAD: Final = b'{"checksum":"%08x","object":'
_HEAD_BYTES: Final = len(_HEAD % 0)


class CorruptMetadataError(StorageError):
    """The state of the coordination store is unusable: damaged, gone, or set back.

    No broker starts with it, and running brokers go on without it; no object is created again.
    """


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of one object.

    Attributes:
        value: the text described above.
        version: 1 for the first write, then one more for each.
        controller_epoch: of the controller that wrote it.
    """

    value: bytes
    version: int
    controller_epoch: ControllerEpoch


def seal(key: str, version: int, controller_epoch: ControllerEpoch, state: object) -> StoredObject:
    """Return the object to store; `state` is of JSON's types."""
    content = {
        "controller_epoch": controller_epoch,
        "format": FORMAT,
        "key": key,
        "state": state,
        "version": version,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
    return StoredObject(
        b"".join((_HEAD % crc32c.crc32c(text), text, b"}")), version, controller_epoch
    )


def unseal(key: str, stored: StoredObject) -> Any:
    """Return the state of an object that was read under `key`.

    Raises:
        CorruptMetadataError: it was not sealed for this key and version, or a later release wrote
            it in a format that this one does not know.
    """
    text = stored.value[_HEAD_BYTES:-1]
    if stored.value != b"".join((_HEAD % crc32c.crc32c(text), text, b"}")):
        raise CorruptMetadataError(
            f"the metadata object {key!r} in the coordination store is damaged: its checksum is "
            "wrong. Restore the store from a backup; nothing was changed"
        )
    try:
        content = json.loads(text)
        written = (content["key"], content["version"], content["controller_epoch"])
        if content["format"] != FORMAT:
            raise CorruptMetadataError(
                f"the metadata object {key!r} has format {content['format']}, but this release "
                f"knows {FORMAT} only: start the release that wrote it"
            )
        state = content["state"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadataError(
            f"the metadata object {key!r} is not an object of Millrace: {error!r}"
        ) from error
    expected = (key, stored.version, stored.controller_epoch)
    if written != expected:
        raise CorruptMetadataError(
            f"the metadata object {key!r} says that it is {written}, but was read as {expected}: "
            "it was moved. Restore the store from a backup; nothing was changed"
        )
    return state
