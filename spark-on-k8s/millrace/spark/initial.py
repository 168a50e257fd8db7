"""Where a stream began, kept by the brokers under the query's name."""

from millrace.client import Position
from millrace.spark.lookups import Lookups
from millrace.spark.offsets import LogPosition, Offsets


def keep_initial(lookups: Lookups, name: str, proposed: Offsets) -> Offsets:
    """Return where the query of this name began: as proposed now, or the first time.

    Spark asks again for the initial position after a first batch has failed. One that is later then
    would skip records in silence.
    """
    proposals = {
        place: Position(each.offset, each.leader_epoch)
        for place, each in proposed.positions.items()
    }
    kept = lookups.ask(lambda admin: admin.resolve_initial(name, proposals))
    return Offsets(
        {place: LogPosition(each.offset, each.leader_epoch) for place, each in kept.items()},
        proposed.topic_ids,
    )
