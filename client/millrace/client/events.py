"""The events that the Python client logs, in the process of its user.

`millrace.core.events` has the idea.
"""

from typing import Final

from millrace.core.events import Event, Level

CLIENT_DELAYED: Final = Event(
    name="client_delayed",
    level=Level.WARNING,
    text="broker %(broker)s delays this %(client)s by %(throttle_ms)s ms: it exceeds a quota, see "
    "`millrace quota list`. This is told once; `metrics()` has the sum",
    meaning="A quota delays this client. Each client says so once.",
    action="Raise the [quota](quotas.md), or send and read less.",
    fields=("broker", "client", "throttle_ms"),
)
NO_BROKER_YET: Final = Event(
    name="no_broker_yet",
    level=Level.WARNING,
    text="no broker can be reached yet: %(error)s. It is tried for %(left_s)d s more: is the "
    "address right, and is a broker running there?",
    meaning="A client has tried its first addresses for three seconds. It goes on for the time of "
    "a call, as a broker may be starting. Each client says so once.",
    action="Look at the host and the port. Where a broker is being started, wait.",
    fields=("error", "left_s"),
)
RECORDS_LOST: Final = Event(
    name="records_lost",
    level=Level.WARNING,
    text="a producer was not closed, and left records undelivered (%(records)d): %(reason)s. Close "
    "producers, best by `with` or `async with`",
    meaning="The program ended, or closed the event loop of an asynchronous producer, before all "
    "records were acknowledged. Some of them may be in the log.",
    action="Close the producer, and look at the errors that `close()` raises.",
    fields=("records", "reason"),
)
CLOSING_FAILED: Final = Event(
    name="closing_failed",
    level=Level.WARNING,
    text="close() of a client has failed at the end of a `with` block: %(error)s",
    meaning="An exit of the program, Ctrl-C or a cancellation ended the block, and `close()` could "
    "not do what it does, such as deliver the records of a producer. Any other error that ends a "
    "block has this as a note.",
    action="Do what the error says.",
    fields=("error",),
)
CLIENT_LINES_LEFT_OUT: Final = Event(
    name="client_lines_left_out",
    level=Level.WARNING,
    text="lines of the clients' thread were left out (%(lines)d): handlers are too slow for them",
    meaning="1,000 lines of synchronous clients waited for the program's handlers of `logging`. "
    "Clients do not wait for handlers.",
    action="Log less of `asyncio` and `grpc`, or have handlers take less time.",
    fields=("lines",),
)
TLS_FILES_UNUSABLE: Final = Event(
    name="tls_files_unusable",
    level=Level.WARNING,
    text="changed files of TLS cannot be used, and what they held before counts: %(error)s",
    meaning="A client's certificate, key or authorities changed, and a file is missing, damaged, "
    "or does not fit the others. It is logged once for each reason.",
    action="Correct the files that the line names. No restart is needed.",
    fields=("error",),
)
TOKEN_FILE_UNUSABLE: Final = Event(
    name="token_file_unusable",
    level=Level.WARNING,
    text="the changed file of a token cannot be used, and the token that it held before is sent: "
    "%(error)s",
    meaning="A client's token file was removed, cannot be read, or has no token that may be sent. "
    "Brokers refuse the earlier token once it is removed or has ended. It is logged once for each "
    "reason.",
    action="Write the token into the file that the line names. No restart is needed.",
    fields=("error",),
)
RECORD_RETRIED: Final = Event(
    name="record_retried",
    level=Level.WARNING,
    text="offset %(offset)d of %(topic)s-%(partition)d: attempt %(attempts)d failed, the next one "
    "is in %(pause_ms)d ms: %(error)s",
    meaning="The handler of `process` failed on a record, which is tried again.",
    action="Look at the error.",
    fields=("topic", "partition", "offset", "attempts", "pause_ms", "error"),
)
RECORD_BURIED: Final = Event(
    name="record_buried",
    level=Level.WARNING,
    text="offset %(offset)d of %(topic)s-%(partition)d is a dead letter after attempt "
    "%(attempts)d: %(error)s",
    meaning="The record is in the topic for dead letters. The consumer reads the next one.",
    action="See [Records that cannot be processed](tutorials/dead-letters.md).",
    fields=("topic", "partition", "offset", "attempts", "error"),
)
POSITION_JUMPED: Final = Event(
    name="position_jumped",
    level=Level.WARNING,
    text="%(topic)s-%(partition)d: reading goes on at offset %(to_offset)d and not at "
    "%(from_offset)d (skipped: %(skipped)d): %(reason)s",
    meaning="The next record is not there, so the consumer goes on where `auto_offset_reset` says. "
    "`metrics()` counts such jumps and what they skip.",
    action="Where records were deleted before they were read: let the topic keep its records for "
    "longer, or read faster. Where the log ends before the position: find out what became of it.",
    fields=("topic", "partition", "from_offset", "to_offset", "skipped", "reason"),
)
READ_TOPIC_GONE: Final = Event(
    name="read_topic_gone",
    level=Level.WARNING,
    text="%(error)s. Its partitions (%(partitions)d) are read no more",
    meaning="A topic that the consumer read was deleted. It goes on with its other topics.",
    action="Nothing, if that was on purpose. Otherwise `millrace topic undelete` brings the topic "
    "back for a day.",
    fields=("topic", "partitions", "error"),
)
READ_TOPIC_MADE_AGAIN: Final = Event(
    name="read_topic_made_again",
    level=Level.WARNING,
    text="the topic %(topic)r was deleted and made again: the positions of the group %(group)r are "
    "of the deleted one, so they do not count in the new one",
    meaning="A position belongs to a topic, not to its name. Without one, a member begins where "
    "`auto_offset_reset` says, or at the start of a partition that came later. The member tells of "
    "it as long as the deleted topic can be brought back.",
    action="Nothing, if that was on purpose. Otherwise `millrace topic list --deleted` shows until "
    "when the other one can be brought back.",
    fields=("topic", "group"),
)
MEMBER_SLOW: Final = Event(
    name="member_slow",
    level=Level.WARNING,
    text="the consumer did not poll for max_poll_interval_ms=%(max_poll_interval_ms)d, and leaves "
    "its group %(group)r: poll more often, take fewer records at a time, or raise it",
    meaning="The group's other members get the partitions of this one.",
    action="Poll more often, take fewer records at a time, or raise `max_poll_interval_ms`.",
    fields=("group", "max_poll_interval_ms"),
)
MEMBER_WAITS: Final = Event(
    name="member_waits",
    level=Level.WARNING,
    text="the member waits to join: %(error)s",
    meaning="The group is full, or another member has the instance id: perhaps a process that is "
    "dead, until its session ends.",
    action="Do what the error says.",
    fields=("group", "error"),
)
MEMBER_LOST: Final = Event(
    name="member_lost",
    level=Level.WARNING,
    text="the member lost its partitions: %(error)s",
    meaning="The group went on without this member, which joins again.",
    action="Nothing, unless it happens often: then look at the process and at its network.",
    fields=("group", "error"),
)
COMMIT_FAILED: Final = Event(
    name="commit_failed",
    level=Level.WARNING,
    text="an automatic commit of the group failed: %(error)s",
    meaning="The next commit has these positions, too.",
    action="Do what the error says if it stays.",
    fields=("group", "error"),
)
TRANSACTION_RETRIED: Final = Event(
    name="transaction_retried",
    level=Level.WARNING,
    text="a transaction of the group %(group)r is tried again: %(error)s",
    meaning="`process_exactly_once` has aborted a transaction and reads its records again, or "
    "repeats a commit whose answer is lost. Nothing is lost or doubled.",
    action="Nothing, unless it happens often: then do what the error says.",
    fields=("group", "error"),
)
LEAVING_FAILED: Final = Event(
    name="leaving_failed",
    level=Level.WARNING,
    text="a consumer that was closed may not have left its group %(group)r: %(error)s",
    meaning="The group gives the member's partitions to others when its session ends. If a "
    "`commit_failed` came before, they read records again.",
    action="Look whether the group's coordinator can be reached.",
    fields=("group", "error"),
)

FIELDS: Final = {
    "attempts": "how often the record was tried",
    "client": "`producer` or `consumer`",
    "from_offset": "of the record that was to be read next",
    "left_s": "seconds for which it is tried",
    "max_poll_interval_ms": "as configured",
    "offset": "of the record",
    "pause_ms": "until the next attempt",
    "records": "how many records",
    "skipped": "how many offsets are not read",
    "throttle_ms": "how long the broker delays an answer",
    "to_offset": "of the record that is read next",
}
"""The meaning of each field that only these events have. `millrace.core.events` has the others."""
