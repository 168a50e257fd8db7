"""How messages and states read in a trace: what they say, without bytes and ids in hexadecimal.

A trace is read by somebody who knows the protocol and has never seen this run. What comes all the
time and changes nothing, such as heartbeats and polls that find nothing, is left out: it reads as
an empty text.
"""

import re
from collections.abc import Iterable
from typing import Final

from tests.sim.messages import (
    Answer,
    Ask,
    AskEnd,
    AskLeaders,
    Batches,
    End,
    FullState,
    Leaders,
    Produce,
    Produced,
    Pushed,
    Read,
    Sent,
    Unserved,
)
from tests.sim.network import Received, StreamEnded, StreamOpened, StreamReceived

from millrace.core.errors import CorruptBatchError, MillraceError, UnsupportedFormatError
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.log.leader_epochs import EpochEnd
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import AlterPartitions, Heartbeat, HeartbeatAnswer
from millrace.core.records.batch import walk
from millrace.core.replication.leader_session import SessionRequest
from millrace.core.replication.progress import FollowerProgress

_TEXT_MAX: Final = 200
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")


def named(topic_partition: TopicPartition) -> str:
    """Return a partition by its topic's name, which simulated topic ids begin with."""
    return f"{_name(topic_partition.topic_id)}-{topic_partition.partition}"


def readable(text: str) -> str:
    """Return a text with the names of simulated topics in the place of their ids."""
    return _TOPIC_ID.sub(lambda found: _name(TopicId(bytes.fromhex(found[0]))), text)


def state(partition: PartitionState) -> str:
    """Return who leads a partition, and who counts."""
    leader = "nobody" if partition.leader_life is None else _life(partition.leader_life)
    said = [f"{leader} leads in epoch {partition.leader_epoch}", f"ISR {_lives(partition.isr)}"]
    if partition.elr:
        said.append(f"ELR {_lives(partition.elr)}")
    if partition.adding or partition.removing:
        said.append(f"adds {list(partition.adding)}, removes {list(partition.removing)}")
    if partition.is_recovering:
        said.append("recovers from an unclean election")
    return f"{', '.join(said)} (partition epoch {partition.partition_epoch})"


def told(message: object) -> str:
    """Return what a message or an event of the network says; empty: nothing of interest."""
    match message:
        case Received(_, inner) | StreamReceived(_, inner):
            return told(inner)
        case StreamOpened(_, request):
            return f"opens {type(request).__name__}"
        case StreamEnded():
            return "is reset"
        case Sent() | Unserved() | SessionRequest():
            return _of_followers(message)
        case Ask() | Answer() | FullState() | Pushed():
            return _of_the_controller(message)
    return _of_clients(message)


def _of_clients(message: object) -> str:
    match message:
        case Produce(number, topic_partition, _, batch, acks):
            wants = "no acks" if acks is None else f"acks={acks.name.lower()}"
            return f"produce #{number} to {named(topic_partition)}, {wants}: {_batches(batch)}"
        case Produced(number, base_offset, error):
            return f"produced #{number}: {_failed(error) or f'at offset {base_offset}'}"
        case Read() | AskEnd() | AskLeaders() | Leaders():
            return ""
        case Batches(data=b"", diverging=None, error=None):
            return ""
        case Batches():
            what = _failed(message.error) or _read(message.data, message.diverging)
            return f"read #{message.number}: {what}; committed to {message.high_watermark}"
        case End():
            return f"end #{message.number}: {_failed(message.error) or message.end_offset}"
    return _short(str(message))


def _of_followers(message: Sent | Unserved | SessionRequest) -> str:
    match message:
        case Sent():
            what = _read(message.data, message.diverging)
            return (
                f"to position {message.handle}, from {message.fetch_offset}: {what}; "
                f"committed to {message.high_watermark}, begins at {message.log_start_offset}"
            )
        case Unserved(handle, log_start_offset):
            return f"position {handle} is refused; the log begins at {log_start_offset}"
    return _session(message)


def _of_the_controller(message: Ask | Answer | FullState | Pushed) -> str:
    match message:
        case Ask(number, Heartbeat(wants_shutdown=True) as beat):
            return f"#{number}: {_life(beat.life)} wants to leave"
        case Ask(_, Heartbeat()) | Answer(_, HeartbeatAnswer(may_stop=False)):
            return ""
        case Ask(number, AlterPartitions(changes=changes)):
            wanted = [
                f"{named(TopicPartition(each.topic_id, each.partition))} ISR {_lives(each.isr)} "
                f"on partition epoch {each.partition_epoch}"
                for each in changes
            ]
            return f"#{number}: wants {'; '.join(wanted)}"
        case Ask(number, request):
            return _short(f"#{number}: {request}")
        case Answer(number, result):
            return _short(f"#{number}: {_result(result)}")
    versions = [f"{key} version {stored.version}" for key, stored in message.objects.items()]
    return f"metadata: {', '.join(versions)}"


def _read(data: bytes, diverging: EpochEnd | None) -> str:
    return _batches(data) if diverging is None else f"diverges: {diverging}"


def _session(request: SessionRequest) -> str:
    said = [
        f"fetches {named(topic_partition)} from {position.fetch_offset} in epoch "
        f"{position.leader_epoch} as position {handle}, {_progress(progress)}"
        for handle, topic_partition, position, progress in request.added
    ]
    said += [f"position {handle} {_progress(progress)}" for handle, progress in request.progress]
    if request.removed:
        said.append(f"leaves positions {request.removed}")
    return "; ".join(said) or f"grants {request.credit_bytes} bytes"


def _progress(progress: FollowerProgress) -> str:
    return f"has written {progress.log_end_offset}, flushed {progress.flushed_offset}"


def _batches(data: bytes) -> str:
    try:
        headers = [header for header, _ in walk(data)]
    except (CorruptBatchError, UnsupportedFormatError) as error:
        return f"damaged bytes: {error}"
    if not headers:
        return "nothing"
    header = headers[0]
    if not header.is_stamped:
        return (
            f"{header.record_count} records of producer {header.producer_id}, sequence "
            f"{header.base_sequence}"
        )
    last = headers[-1]
    return f"offsets {header.base_offset} to {last.last_offset} of epoch {last.leader_epoch}"


def _result(result: object) -> str:
    if isinstance(result, list):
        return "; ".join(map(_result, result))
    if isinstance(result, PartitionState):
        return state(result)
    return _failed(result) or str(result)


def _failed(error: object) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, MillraceError) else ""


def _lives(lives: Iterable[BrokerLife]) -> str:
    return f"[{' '.join(map(_life, lives))}]"


def _life(life: BrokerLife) -> str:
    """A broker, and which of its lives."""
    return f"{life.broker_id}.{life.broker_epoch}"


def _short(text: str) -> str:
    text = readable(text)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 4]} ..."


def _name(topic_id: TopicId) -> str:
    return topic_id.decode(errors="replace").partition(" of ")[0]
