"""Media of log directories on the wire. One that only a later release knows counts as not said."""

from collections.abc import Collection, Mapping
from typing import Final

from millrace.core.media import Media
from millrace.proto.v1 import common_pb2

_TO_WIRE: Final = {Media.SSD: common_pb2.MEDIA_SSD, Media.HDD: common_pb2.MEDIA_HDD}
_FROM_WIRE: Final[Mapping[int, Media]] = {number: media for media, number in _TO_WIRE.items()}


def media_to_wire(media: Media) -> common_pb2.Media:
    """Return the number of a media."""
    return _TO_WIRE[media]


def media_from_wire(number: int) -> Media | None:
    """Return the media of a number; None when it was not said."""
    return _FROM_WIRE.get(number)


def media_set_from_wire(numbers: Collection[int]) -> tuple[Media, ...]:
    """Return the media of several numbers, each once, in the order of `Media`."""
    return tuple(media for number, media in _FROM_WIRE.items() if number in numbers)
