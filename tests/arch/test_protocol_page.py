"""What docs/protocol.md says of DRPC is what the code does."""

import re
from itertools import groupby

from docs.generate import PROTOCOL
from docs.protocol_page import chunks_of, packets, protocol

from millrace.core.ids import TopicId, TopicPartition
from millrace.core.records.batch import open_batch
from millrace.core.records.header import parse_header
from millrace.proto.v1.produce_pb2 import ProduceRequest
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Kind

PAGE = PROTOCOL.read_text()


def test_what_stands_beside_the_bytes_is_what_they_mean() -> None:
    assert protocol(PAGE) == PAGE, "run `make docs`"


def test_the_bytes_are_three_whole_calls_of_which_the_second_writes_a_record() -> None:
    found = list(packets(chunks_of(PAGE)))
    kinds = [(side, header.stream, header.kind) for side, header, _, _ in found]
    begins = [(">", Kind.METADATA), (">", Kind.INVOKE), (">", Kind.MESSAGE)]
    answers = [("<", Kind.MESSAGE), ("<", Kind.CLOSE_SEND)]
    ended = (">", Kind.CLOSE_SEND)
    for stream, expected in {
        1: [*begins, ended, *answers],
        2: [*begins, answers[0], ended, answers[1]],
        3: [*begins, ended, ("<", Kind.ERROR_DETAILS), ("<", Kind.ERROR)],
    }.items():
        assert [(side, kind) for side, of, kind in kinds if of == stream] == expected
    assert [stream for stream, _ in groupby(of for _, of, _ in kinds)] == [1, 2, 3]
    body = next(
        body
        for side, header, _, body in found
        if (side, header.stream, header.kind) == (">", 2, Kind.MESSAGE)
    )
    request = ProduceRequest.FromString(body)
    (about,) = request.header.partitions
    partition = TopicPartition(TopicId(about.topic_id), about.partition)
    records = open_batch(partition, parse_header(request.batches), request.batches, 1 << 20)
    assert records.column("value").to_pylist() == [b"hello"]


def test_the_page_has_every_kind_of_packet_and_every_name_of_metadata() -> None:
    said = re.findall(r"^\| (\d+) \| ([a-z -]+) \|", PAGE, re.MULTILINE)
    names = {int(number): re.sub("[ -]", "_", name).upper() for number, name in said}
    assert {number: name for number, name in names.items() if name in Kind.__members__} == {
        kind.value: kind.name for kind in Kind
    }
    for name in (wire.DEADLINE, wire.KEEP_ALIVE):
        assert f"| `{name}` |" in PAGE
