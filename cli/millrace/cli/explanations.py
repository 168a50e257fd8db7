"""Explains an error of Millrace to a person: the message, a hint, and an exit code."""

from collections.abc import Iterable, Mapping
from typing import Any

from millrace.cli.arguments.partition_names import parse
from millrace.cli.cluster import DEFAULT_BOOTSTRAP, topic_names
from millrace.cli.console.failures import ExitCode, Failure, nearest
from millrace.cli.topics.trash import IN_TRASH
from millrace.core import errors
from millrace.core.topics import INTERNAL_PREFIX

_EXIT_CODES: dict[type[errors.MillraceError], ExitCode] = {
    errors.ConnectionFailedError: ExitCode.UNREACHABLE,
    errors.UnknownTopicOrPartitionError: ExitCode.NOT_FOUND,
    errors.QuotaNotFoundError: ExitCode.NOT_FOUND,
    errors.TransactionalIdNotFoundError: ExitCode.NOT_FOUND,
    errors.TransactionInDoubtError: ExitCode.TIMED_OUT,
    errors.OffsetOutOfRangeError: ExitCode.NOT_FOUND,
    errors.LogTruncatedError: ExitCode.NOT_FOUND,
    errors.RequestTimedOutError: ExitCode.TIMED_OUT,
    errors.DeliveryTimedOutError: ExitCode.TIMED_OUT,
    errors.BufferExhaustedError: ExitCode.TIMED_OUT,
    errors.CorruptBatchError: ExitCode.DAMAGED,
    errors.CorruptLogError: ExitCode.DAMAGED,
    errors.NotControllerError: ExitCode.UNHEALTHY,
    errors.ControllerNotAvailableError: ExitCode.UNHEALTHY,
    errors.PreferredLeaderNotAvailableError: ExitCode.UNHEALTHY,
    errors.EligibleLeadersNotAvailableError: ExitCode.UNHEALTHY,
}

_HINTS: dict[type[errors.MillraceError], str] = {
    errors.AuthenticationFailedError: (
        "give the token with --token-file; or with MILLRACE_TOKEN_FILE, but in the profile where "
        "one is used: `millrace profile set PROFILE --token-file FILE`. `millrace token new NAME` "
        "makes one, where the brokers' file of tokens is. On Kubernetes a token is a "
        "ServiceAccount's: `kubectl millrace --account NAME CLUSTER ...` gets one"
    ),
    errors.NotLeaderError: "`millrace cluster health` says what to do about it",
    errors.TopicAlreadyExistsError: (
        "see it with `millrace topic describe {topic}`, "
        "change it with `millrace topic alter {topic}`"
    ),
    errors.OffsetOutOfRangeError: "see which offsets there are with `millrace offsets {topic}`",
    errors.LogTruncatedError: "see which offsets there are with `millrace offsets {topic}`",
    errors.QuotaNotFoundError: "list them with `millrace quota list`",
    errors.StorageFullError: (
        "keep less: `millrace topic alter {topic} --set retention.bytes=...`; what was deleted "
        f"{IN_TRASH}"
    ),
    errors.StorageBusyError: (
        "raise the broker's limit of open files (`ulimit -n`), or lower storage.file_handles_max"
    ),
    errors.LogDirFailedError: "the broker's log says which disk failed",
    errors.BufferExhaustedError: "the broker does not keep up; try again, or send less at a time",
    errors.CorruptBatchError: "examine the broker's files with `millrace log verify DIRECTORY`",
    errors.CorruptLogError: "examine the broker's files with `millrace log verify DIRECTORY`",
    errors.NotControllerError: "`millrace cluster health` shows what is wrong",
    errors.ControllerNotAvailableError: "`millrace cluster health` shows what is wrong",
    errors.UnsupportedFeatureError: "compare `millrace --version` on both sides",
    errors.UnsupportedFormatError: "compare `millrace --version` on both sides",
}

_NOBODY_REACHED = "no broker can be reached"
"""The beginning of the client's message when no known broker answers."""
_NO_CLIENTS_THERE = ("HTTP/2", "UNIMPLEMENTED")
"""gRPC's errors for a port with another protocol, or other services."""
_SPEAKS_TLS = "it speaks TLS, and this client does not"
_NO_TLS_THERE = "it does not speak TLS"
"""Of the client's messages where only one end does."""
_MAYBE_APPENDED = "it is not known whether the write was done: look before you repeat it"


def explain(
    error: errors.MillraceError, parameters: Mapping[str, Any], *, writes: bool = False
) -> Failure:
    """Turn an error of Millrace into a message for a person.

    Args:
        writes: the command changes something, records or the cluster.
    """
    topics = _topics(parameters)
    hint = _HINTS.get(type(error), "").format(topic=topics[0] if topics else "TOPIC")
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        hint = _hint_for_unknown_topic(topics, parameters.get("bootstrap"))
    elif (
        writes
        and error.appended is errors.Appended.MAYBE
        and (not hint or isinstance(error, errors.NotControllerError))
    ):
        hint = "; ".join(sentence for sentence in (_MAYBE_APPENDED, hint) if sentence)
    elif isinstance(error, errors.ConnectionFailedError):
        hint = _hint_for_unreachable(error.message, parameters.get("bootstrap"))
    return Failure(
        error.message,
        hint,
        code_name=error.name(),
        exit_code=exit_code_of([error]),
    )


def exit_code_of(refused: Iterable[errors.MillraceError]) -> ExitCode:
    """Return the exit code of a command with several refusals."""
    codes = {_EXIT_CODES.get(type(error), ExitCode.FAILED) for error in refused}
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED


def _topics(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the topics of the command."""
    topic = parameters.get("topic") or parameters.get("source")
    topics = parameters.get("topics")
    if isinstance(topic, str):
        return (topic,)
    if topics:
        return tuple(topics)
    # Where partitions are named they are TOPIC or TOPIC:PARTITION; with a topic they are numbers.
    return tuple(parse(name)[0] for name in parameters.get("partitions") or ())


def _hint_for_unreachable(message: str, bootstrap: str | None) -> str:
    if not message.startswith(_NOBODY_REACHED):
        return "others may be there: `millrace cluster health` says which ones"
    if any(text in message for text in _NO_CLIENTS_THERE):
        return (
            "something answers there that is no broker's port for clients: brokers have one more "
            "for the metrics page, and one for each other. `millrace up` and the broker's log name "
            "them"
        )
    if _SPEAKS_TLS in message:
        return (
            "give the file with --tls-ca-file; or with MILLRACE_TLS_CA_FILE, but in the profile "
            "where one is used: `millrace profile set PROFILE --tls-ca-file FILE`"
        )
    if _NO_TLS_THERE in message:
        return "leave --tls-ca-file away, or say --tls-ca-file none where a variable names a file"
    name_one = (
        "name a broker that runs with --bootstrap HOST:PORT or MILLRACE_BOOTSTRAP, or a cluster "
        "with --profile"
    )
    if bootstrap == DEFAULT_BOOTSTRAP and f"no broker listens at {bootstrap}" in message:
        return f"start one on this machine with `millrace up`, or {name_one}"
    return name_one


def _hint_for_unknown_topic(topics: tuple[str, ...], bootstrap: str | None) -> str:
    if not topics or not bootstrap:
        return "list the topics with `millrace topic list`"
    known = topic_names(bootstrap)
    missing = next((topic for topic in topics if topic not in known), None)
    if missing is None:
        return f"see its partitions with `millrace topic describe {topics[0]}`"
    if missing.rpartition("/")[2].startswith(INTERNAL_PREFIX):
        return "topics of the cluster itself are made when they are first needed, and not by hand"
    match = nearest(missing, known)
    if match:
        return f"did you mean {match!r}?"
    return (
        f"list the topics with `millrace topic list`, or make it: `millrace topic create {missing}`"
    )
