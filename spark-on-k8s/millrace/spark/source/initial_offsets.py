"""Where a stream began, kept by the brokers under the query's name.

Beside each position is the value of the options. So a query that is to begin elsewhere does not
silently replace another one, or itself from before its checkpoint was deleted.
"""

from millrace.client import Position
from millrace.spark.cluster.lookups import Lookups
from millrace.spark.cluster.offsets import LogPosition, Offsets
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.subscriptions import OffsetsOption, text_of


def keep_initial(
    lookups: Lookups, name: str, proposed: Offsets, option: str, where: OffsetsOption
) -> Offsets:
    """Return where the query of this name began: as proposed now, or the first time.

    Spark asks again for the initial position after a first batch has failed. A later position would
    silently skip records.

    Args:
        proposed: where it would begin now.
        option: the option of that position. where: its value.

    Raises:
        InvalidOptionError: the query began at another position than the option's.
    """
    asked = {
        place: text_of(at) for place, at in where.of(option, frozenset(proposed.positions)).items()
    }
    proposals = {
        place: Position(position.offset, position.leader_epoch, asked[place])
        for place, position in proposed.positions.items()
    }
    kept = lookups.ask(lambda admin: admin.resolve_initial(name, proposals))
    for place, position in sorted(kept.items()):
        if position.metadata not in (asked[place], ""):  # Others may keep positions without a text.
            raise InvalidOptionError(
                f"the query of groupId {name!r} began at {position.metadata} in "
                f"{place[0]}-{place[1]}, and {option} says {asked[place]}: give each query a name "
                f"of its own, or forget where that one began: millrace group delete {name!r}"
            )
    return Offsets(
        {
            place: LogPosition(position.offset, position.leader_epoch)
            for place, position in kept.items()
        },
        proposed.topic_ids,
    )
