"""Whose producer ids are: nobody else's batch may take a producer's next sequence, or fence it.

Ids are counted up, and who reads a topic sees those of its producers. A batch of another producer
with the right to write to the topic could thus stand in for one that is still to come, which then
would count as its repetition, and be lost; or it could join a transaction that is open. So a broker
remembers the owner of each id: the principal that it gave the id to, or whose batch was the first
one here; of a transaction, the transactional id with which its coordinator has let a batch join.

What callers that prove nothing use is not kept: they cannot be told from one another. Of so many
ids that not all can be remembered, those that were used last are. An owner of more than a share of
all makes room with its own: anybody who is known gets as many ids as it asks for, and must not have
those of others forgotten. A broker that has started, or has just become a leader, believes the
first one that uses an id; Kafka believes everybody.
"""

from collections import OrderedDict
from typing import Final

from millrace.core.callers import ANONYMOUS
from millrace.core.errors import (
    AccessDeniedError,
    Appended,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from millrace.core.guard.access import Resource
from millrace.core.ids import NO_PRODUCER_ID, ProducerId

OWNERS_MAX: Final = 50_000
"""Ids whose owners are remembered; about 300 bytes each, and 300 for each owner."""
_SHARE: Final = 10
"""The part of all ids by which an owner may have others forgotten: a tenth."""

Owner = str | Resource
"""A principal, or a transactional id."""


class ProducerOwners:
    """The owners of producer ids, as far as one broker knows them."""

    def __init__(self, owners_max: int = OWNERS_MAX) -> None:
        self._owners_max = owners_max
        # In both the one that was used last is last.
        self._owners = OrderedDict[ProducerId, Owner]()
        self._ids: dict[Owner, OrderedDict[ProducerId, None]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def keep(self, producer_id: ProducerId, owner: Owner) -> None:
        """Keep whose an id is: it was given out, a coordinator says so, or a batch was appended."""
        known = self._owners.get(producer_id)
        if known is not None and known == owner:
            self._owners.move_to_end(producer_id)
            self._ids[known].move_to_end(producer_id)
            return
        if known is not None:
            self._forget(producer_id)
        if owner == ANONYMOUS or producer_id == NO_PRODUCER_ID:
            return
        if len(self._owners) >= self._owners_max:
            own = self._ids.get(owner)
            if own is None or len(own) * _SHARE < self._owners_max:
                self._forget(next(iter(self._owners)))
            else:
                self._forget(next(iter(own)))
        self._owners[producer_id] = owner
        self._ids.setdefault(owner, OrderedDict())[producer_id] = None

    def _forget(self, producer_id: ProducerId) -> None:
        owner = self._owners.pop(producer_id)
        own = self._ids[owner]
        del own[producer_id]
        if not own:
            del self._ids[owner]

    def check(self, producer_id: ProducerId, owner: Owner) -> None:
        """Refuse a batch whose id is of somebody else, as far as is known.

        Raises:
            AccessDeniedError: it is.
        """
        known = self._owners.get(producer_id)
        if known is not None and known != owner:
            raise _refusal(producer_id, owner)


def _refusal(producer_id: ProducerId, owner: Owner) -> AccessDeniedError:
    is_principal = isinstance(owner, str)
    error = (
        TopicAuthorizationFailedError if is_principal else TransactionalIdAuthorizationFailedError
    )
    return error(
        f"producer id {producer_id} is not that of {str(owner)!r}: get one by InitProducerId, as a "
        "new producer does",
        appended=Appended.NO,
    )
