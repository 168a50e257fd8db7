"""Whose producer ids are: nobody else's batch may take a producer's next sequence, or fence it.

Ids are counted up, and who reads a topic sees those of its producers. A batch of another producer
with the right to write to the topic could thus stand in for one that is still to come, which then
would count as its repetition, and be lost; or it could join a transaction that is open. So a broker
remembers the owner of each id: the principal that it gave the id to, or whose batch was the first
one here; of a transaction, the transactional id with which its coordinator has let a batch join.

What callers that prove nothing use is not kept: they cannot be told from one another. Of so many
ids that not all can be remembered, those that were used last are. A broker that has started, or has
just become a leader, believes the first one that uses an id; Kafka believes everybody.
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
"""Ids whose owners are remembered; about 200 bytes each."""

Owner = str | Resource
"""A principal, or a transactional id."""


class ProducerOwners:
    """The owners of producer ids, as far as one broker knows them."""

    def __init__(self, owners_max: int = OWNERS_MAX) -> None:
        self._owners_max = owners_max
        # The one that was used last is last.
        self._owners = OrderedDict[ProducerId, Owner]()

    def __len__(self) -> int:
        return len(self._owners)

    def keep(self, producer_id: ProducerId, owner: Owner) -> None:
        """Keep whose an id is: it was given out, a coordinator says so, or a batch was appended."""
        owners = self._owners
        owners.pop(producer_id, None)
        if owner == ANONYMOUS or producer_id == NO_PRODUCER_ID:
            return
        if len(owners) >= self._owners_max:
            owners.popitem(last=False)
        owners[producer_id] = owner

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
