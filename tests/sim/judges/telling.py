"""The text of states and messages in a trace.

A life of a broker is broker.epoch, as in `ISR [0.1 2.7]`; of batches only the size is shown.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pool, text_format
from google.protobuf.message_factory import GetMessageClass

from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.proto import codec

_LENGTH_MAX: Final = 240
_WITH_BATCHES: Final = {
    ("/millrace.proto.v1.Produce/Produce", True): codec.decode_produce_request,
    ("/millrace.proto.v1.Fetch/Fetch", False): codec.decode_fetch_response,
    ("/millrace.proto.v1.Replica/Fetch", False): codec.decode_fetch_response,
}
"""Messages that are a header and batches, by method and direction."""


def state(partition: PartitionState) -> str:
    """Return the leader of a partition, and its in-sync and eligible replicas."""
    leader = "nobody" if partition.leader_life is None else _life(partition.leader_life)
    said = [f"{leader} leads in epoch {partition.leader_epoch}", f"ISR {_lives(partition.isr)}"]
    if partition.elr:
        said.append(f"ELR {_lives(partition.elr)}")
    if partition.adding or partition.removing:
        said.append(f"adds {list(partition.adding)}, removes {list(partition.removing)}")
    if partition.is_recovering:
        said.append("recovers from an unclean election")
    return f"{', '.join(said)} (partition epoch {partition.partition_epoch})"


def _lives(lives: Iterable[BrokerLife]) -> str:
    return f"[{' '.join(map(_life, lives))}]"


def _life(life: BrokerLife) -> str:
    return f"{life.broker_id}.{life.broker_epoch}"


def message(method: str, data: bytes, *, is_request: bool) -> str:
    """Return a message of a call in one line."""
    decode = _WITH_BATCHES.get((method, is_request))
    said: Any
    if decode is not None:
        said, batches = decode(data)
        rest = f" and {sum(map(len, batches))} bytes"
    else:
        said, rest = _type_of(method, is_request).FromString(data), ""
    text = text_format.MessageToString(said, as_one_line=True)
    if len(text) > _LENGTH_MAX:
        text = f"{text[:_LENGTH_MAX]}…"
    kind = "asks" if is_request else "answers"
    return f"{method.rpartition('.')[2]} {kind} {{{text}}}{rest}"


@cache
def _type_of(method: str, is_request: bool) -> Any:
    service, _, name = method.removeprefix("/").rpartition("/")
    found = descriptor_pool.Default().FindMethodByName(f"{service}.{name}")
    return GetMessageClass(found.input_type if is_request else found.output_type)
