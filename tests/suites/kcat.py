"""kcat, a command line over librdkafka: Debian's package, which `install.sh suites` installs."""

import json
import shutil

from bench.peers.maven import PeerMissingError
from tests.suites.command_lines import Bench, Check, CheckedSuite, UnexpectedError
from tests.suites.kafka_jars import scripts

COMMAND_TIMEOUT_S = 45
PAIRS = [f"key-{number}:value-{number}" for number in range(200)]
ATTEMPTS = 20
CODECS = ("gzip", "snappy", "lz4", "zstd")


def _fetch() -> None:
    """Look whether it is there; Kafka's tool creates the topics."""
    if shutil.which("kcat") is None:
        raise PeerMissingError("no kcat: sh requirements/install.sh suites")
    scripts()


def _program(name: str) -> str:
    return name if name == "kcat" else str(scripts() / "bin" / name)


def _kcat(bench: Bench, *arguments: str, given: str = "", says: str = "") -> str:
    return bench.run("kcat", "-b", bench.target.bootstrap, *arguments, given=given, says=says)


def _create(bench: Bench, partitions: int = 3) -> None:
    bench.run(
        *("kafka-topics.sh", "--bootstrap-server", bench.target.bootstrap, "--create"),
        *("--topic", bench.topic, "--partitions", str(partitions)),
        *("--replication-factor", str(bench.target.replication)),
    )


def _write(bench: Bench, *arguments: str) -> None:
    text = "".join(f"{pair}\n" for pair in PAIRS)
    _kcat(bench, "-P", "-t", bench.topic, "-K:", *arguments, given=text)


def _read(bench: Bench, *arguments: str) -> list[str]:
    said = _kcat(bench, "-C", "-t", bench.topic, "-K:", "-e", "-q", *arguments)
    return sorted(line for line in said.splitlines() if line.startswith("key-"))


def _expect(found: list[str], expected: list[str]) -> None:
    if found != sorted(expected):
        raise UnexpectedError(f"{len(found)} records, {len(expected)} expected: {found[:5]}")


def _metadata(bench: Bench) -> None:
    _create(bench)
    _kcat(bench, "-L", says=rf'topic "{bench.topic}" with 3 partitions')
    found = json.loads(_kcat(bench, "-L", "-J", "-t", bench.topic))
    if [len(topic["partitions"]) for topic in found["topics"]] != [3]:
        raise UnexpectedError(f"the topics are {found['topics']}")


def _all(codec: str) -> Check:
    def check(bench: Bench) -> None:
        _create(bench)
        _write(bench, *(("-z", codec) if codec else ()))
        _expect(_read(bench, "-o", "beginning"), PAIRS)

    return check


def _acks(acks: str) -> Check:
    def check(bench: Bench) -> None:
        _create(bench)
        _write(bench, "-X", f"acks={acks}")
        # Without acknowledgements kcat ends when all is sent, which may not be there yet.
        attempts = ATTEMPTS if acks == "0" else 1
        while len(found := _read(bench, "-o", "beginning")) < len(PAIRS) and attempts > 1:
            attempts -= 1
        _expect(found, PAIRS)

    return check


def _idempotent(bench: Bench) -> None:
    _create(bench)
    _write(bench, "-X", "enable.idempotence=true")
    _expect(_read(bench, "-o", "beginning"), PAIRS)


def _headers(bench: Bench) -> None:
    _create(bench, partitions=1)
    _kcat(bench, "-P", "-t", bench.topic, "-H", "trace=abc", given="one\n")
    read = ("-C", "-t", bench.topic, "-o", "beginning", "-e", "-q", "-f", "%h %s %o %T\\n")
    _kcat(bench, *read, says=r"trace=abc one 0 \d{13}")


def _null(bench: Bench) -> None:
    _create(bench, partitions=1)
    _kcat(bench, "-P", "-t", bench.topic, "-K:", "-Z", given="only-key:\n")
    read = ("-C", "-t", bench.topic, "-o", "beginning", "-e", "-q", "-f", "%k %S\\n")
    _kcat(bench, *read, says="only-key -1")


def _end(bench: Bench) -> None:
    _create(bench, partitions=1)
    _write(bench)
    _expect(_read(bench, "-o", "-10"), PAIRS[-10:])
    _expect(_read(bench, "-o", "150", "-p", "0", "-c", "5"), PAIRS[150:155])


def _by_time(bench: Bench) -> None:
    _create(bench, partitions=1)
    _write(bench)
    _kcat(bench, "-Q", "-t", f"{bench.topic}:0:1", says=rf"{bench.topic} \[0\] offset 0")
    _kcat(bench, "-Q", "-t", f"{bench.topic}:0:-1", says=rf"offset {len(PAIRS)}")
    _expect(_read(bench, "-o", "s@1"), PAIRS)


def _group(protocol: str) -> Check:
    def check(bench: Bench) -> None:
        _create(bench)
        _write(bench)
        member = (
            *("-G", bench.group, "-X", "auto.offset.reset=earliest", "-K:", "-q"),
            *("-X", f"partition.assignment.strategy={protocol}"),
        )
        first = _kcat(bench, *member, "-c", "150", bench.topic)
        second = _kcat(bench, *member, "-e", bench.topic)
        read = [line for line in (first + second).splitlines() if line.startswith("key-")]
        _expect(sorted(set(read)), PAIRS)

    return check


def _unknown(bench: Bench) -> None:
    bench.run(
        *("kcat", "-b", bench.target.bootstrap, "-C", "-t", bench.topic, "-e", "-q"),
        *("-X", "allow.auto.create.topics=false"),
        says="[Uu]nknown topic",
        code=1,
    )


CHECKS: dict[str, Check] = {
    "metadata": _metadata,
    "produce_consume": _all(""),
    **{f"produce_consume_{codec}": _all(codec) for codec in CODECS},
    **{f"acks_{acks}": _acks(acks) for acks in ("0", "1", "all")},
    "idempotent": _idempotent,
    "headers": _headers,
    "null_values": _null,
    "from_the_end": _end,
    "offsets_by_time": _by_time,
    **{
        f"group_{protocol.replace('-', '_')}": _group(protocol)
        for protocol in ("range", "roundrobin", "cooperative-sticky")
    },
    "unknown_topic": _unknown,
}
KCAT = CheckedSuite(
    name="kcat",
    version="1.7.1",
    about="kcat: metadata, producing, consuming, offsets by time, balanced groups",
    checks=CHECKS,
    fetch=_fetch,
    program=_program,
    timeout_s=COMMAND_TIMEOUT_S,
)
