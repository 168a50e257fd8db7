"""Media of disks: the media of a log directory, and the media that a topic asks for.

A broker tells the controller the media of its working log directories. New replicas of a topic go
to brokers that have its media, into a directory of it. A replica on another media, because the
topic asked for that before, works as well; it is only misplaced, and moves if its broker has the
media (`replication/replica_moves.py`).

HDFS and ClickHouse name the media of volumes in the same way.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final


class Media(StrEnum):
    """What a log directory lies on."""

    SSD = "ssd"
    HDD = "hdd"


DEFAULT_MEDIA: Final = Media.SSD
"""Of a log directory without configured media."""


class TopicMedia(StrEnum):
    """The media on which the replicas of a topic should lie."""

    ANY = "any"
    SSD = "ssd"
    HDD = "hdd"
    TIERED = "tiered"
    """On an SSD; closed segments move to an HDD of the same broker (`tiers.py`)."""

    def is_among(self, there: Collection[Media]) -> bool:
        """Whether a broker with directories of these media can hold a replica on the right one.

        A broker of an earlier release names none.
        """
        match self:
            case TopicMedia.ANY:
                return True
            case TopicMedia.TIERED:
                return {Media.SSD, Media.HDD} <= set(there)
            case _:
                return self.value in there

    @property
    def needed(self) -> str:
        """The media of the log directories that a broker needs for it, in words."""
        return "ssd and one on hdd" if self is TopicMedia.TIERED else self.value

    def is_home_on(self, media: Media) -> bool:
        """Whether the log directory of a replica, where it is written, may lie on this media."""
        home = Media.SSD if self is TopicMedia.TIERED else self
        return home is TopicMedia.ANY or home.value == media
