"""The events that a broker logs. `millrace.core.events` has the idea."""

from typing import Final

from millrace.core.callers import CALLER_FIELDS
from millrace.core.events import Event, Level

# --- The process ---------------------------------------------------------------------------------

BROKER_READY: Final = Event(
    name="broker_ready",
    level=Level.INFO,
    text="broker is ready",
    meaning="The broker serves clients.",
    fields=("address", "cluster_id"),
)
BROKER_FAILED: Final = Event(
    name="broker_failed",
    level=Level.CRITICAL,
    text="the broker stops",
    meaning="The broker cannot go on, and ends.",
    action="Do what the error says. A trace means a bug: report it.",
    fields=("error",),
)
UNEXPECTED_ERROR: Final = Event(
    name="unexpected_error",
    level=Level.CRITICAL,
    text="an unexpected error: %(where)s",
    meaning="A bug, and the broker stops: `broker_failed` follows.",
    action="Report it, with the trace.",
    fields=("where",),
)
CONNECTIONS_LOWERED: Final = Event(
    name="connections_lowered",
    level=Level.WARNING,
    text="fewer connections than configured: the process may not open as many files",
    meaning="The limit of open files leaves room for fewer connections than are configured.",
    action="Raise the limit (`ulimit -Hn`), or lower `limits.connections_max`.",
    fields=("connections_max", "allowed", "open_files"),
)
OUTSIDE_ADDRESS_CHANGED: Final = Event(
    name="outside_address_changed",
    level=Level.INFO,
    text="the outside address changes",
    meaning="Clients outside the cluster are given another address of this broker.",
    fields=("address",),
)
OUTSIDE_ADDRESS_UNREADABLE: Final = Event(
    name="outside_address_unreadable",
    level=Level.WARNING,
    text="the outside address cannot be read: %(error)s",
    meaning="The file with the address for clients outside the cluster is missing or malformed.",
    action="See what the operator says about the cluster's outside listener.",
    fields=("error",),
)
INITIAL_BROKERS_UNREADABLE: Final = Event(
    name="initial_brokers_unreadable",
    level=Level.WARNING,
    text="the number of first brokers cannot be read: %(error)s",
    meaning="The file of `node.initial_brokers_file` cannot be read, or has no whole number "
    "from 1 to 1000. The number that was read last counts; `cluster.initial_brokers` counts if no "
    "number was read yet.",
    action="Correct the file; on Kubernetes the operator writes it.",
    fields=("error",),
)

# --- Controller and coordination store -----------------------------------------------------------

STORE_UNAVAILABLE: Final = Event(
    name="store_unavailable",
    level=Level.WARNING,
    text="the coordination store is away: the lease can be neither kept nor taken",
    meaning="Clients produce and fetch as before; there are no elections and no changes of topics.",
    action="Look at the coordination store; on Kubernetes, at the API server.",
    fields=("error",),
)
STORE_AVAILABLE: Final = Event(
    name="store_available",
    level=Level.INFO,
    text="the coordination store answers again",
    meaning="The end of `store_unavailable`.",
)
LEASE_UNWATCHED: Final = Event(
    name="lease_unwatched",
    level=Level.INFO,
    text="the lease is not watched",
    meaning="The watch of the controller's lease ended; the broker reads the lease instead.",
    action="Nothing, unless it stays: then look at the API server.",
    fields=("error",),
)
METADATA_UNUSABLE: Final = Event(
    name="metadata_unusable",
    level=Level.ERROR,
    text="there is no controller: %(error)s",
    meaning="The content of the coordination store cannot be used, so no broker can control.",
    action="Do what the error says.",
    fields=("error",),
)
METADATA_NOT_READ: Final = Event(
    name="metadata_not_read",
    level=Level.WARNING,
    text="the metadata could not be read from the coordination store: it is read again",
    meaning="The controller reads the metadata again.",
    action="Look at the coordination store if it stays.",
    fields=("error",),
)
METADATA_NOT_WRITTEN: Final = Event(
    name="metadata_not_written",
    level=Level.WARNING,
    text="a change of the metadata could not be stored: it is written again",
    meaning="The controller writes the change again. Clients that asked for it wait.",
    action="Look at the coordination store if it stays.",
    fields=("error",),
)
CONTROLLER_RESIGNED: Final = Event(
    name="controller_resigned",
    level=Level.WARNING,
    text="controller resigned",
    meaning="This broker stopped being the controller. Another broker takes over.",
    action="Look at the reason if it happens often.",
    fields=("reason",),
)
CONTROLLER_STOPPED: Final = Event(
    name="controller_stopped",
    level=Level.INFO,
    text="controller resigned",
    meaning="This broker gave up the lease, as it stops.",
    fields=("reason",),
)
REPLICAS_LACK_RECORDS: Final = Event(
    name="replicas_lack_records",
    level=Level.ERROR,
    text="eligible replicas lack acknowledged records, and do not lead: an older copy of the disk "
    "was put back, or damage cut the logs off. Put the newest copy back, or start another eligible "
    "broker; `millrace cluster health` says which",
    meaning="A broker came back with logs that end before records that were acknowledged.",
    action="Put the newest copy of its disk back, or start another eligible broker: `millrace "
    "cluster health` says which.",
    fields=("broker", "partitions", "first"),
)
UNCLEAN_ELECTION: Final = Event(
    name="unclean_election",
    level=Level.WARNING,
    text="a leader was elected that may lack committed records",
    meaning="An unclean election: records of others from `log_end_offset` on are lost.",
    action="See [Elections](clusters.md#elections).",
    fields=("topic", "partition", "leader", "leader_epoch", "log_end_offset"),
)
TOPIC_GONE: Final = Event(
    name="topic_gone",
    level=Level.INFO,
    text="a deleted topic is gone for good",
    meaning="It cannot be brought back any more.",
    fields=("topic", "topic_id", "reason"),
)
TOPIC_RAISED: Final = Event(
    name="topic_raised",
    level=Level.INFO,
    text="partitions of an internal topic get more replicas",
    meaning="The partitions had fewer replicas than `cluster.positions_replication_factor` or "
    "`cluster.transactions_replication_factor` asks for. They got them when the cluster had fewer "
    "brokers or another setting, or by a reassignment. The controller adds the missing replicas.",
    fields=("topic", "partitions"),
)

# --- Sessions with the controller ----------------------------------------------------------------

SESSION_REFUSED: Final = Event(
    name="session_refused",
    level=Level.ERROR,
    text="no session with the controller can begin",
    meaning="The controller refuses this broker.",
    action="Do what the error says.",
    fields=("at", "error"),
)
SESSION_ENDED: Final = Event(
    name="session_ended",
    level=Level.INFO,
    text="the session with the controller ended",
    meaning="The controller changed, or ended the session; this broker looks for the next one.",
    fields=("at", "error"),
)
SESSION_LEFT: Final = Event(
    name="session_left",
    level=Level.INFO,
    text="this broker gave its session with a controller up",
    meaning="This broker gave up a session: another broker is the controller, or it is silent.",
    fields=("at", "reason"),
)
CONTROLLER_MISSING: Final = Event(
    name="controller_missing",
    level=Level.WARNING,
    text="no session with a controller",
    meaning="No controller has answered for longer than a broker may be silent. Leaders go on.",
    action="See whether a broker is the controller: `millrace cluster describe`.",
    fields=("problem",),
)
CONTROLLER_FOUND: Final = Event(
    name="controller_found",
    level=Level.INFO,
    text="there is a session with a controller again",
    meaning="The end of `controller_missing`.",
)
CONTROLLER_MESSAGE_MALFORMED: Final = Event(
    name="controller_message_malformed",
    level=Level.WARNING,
    text="a message of the controller could not be decoded",
    meaning="A message could not be decoded; the session ends and begins again.",
    action="See that all brokers have releases that may run together.",
    fields=("error",),
)
SETTINGS_DIFFER: Final = Event(
    name="settings_differ",
    level=Level.WARNING,
    text="settings of the cluster differ from the controller's, which are used until another "
    "broker is the controller: give all brokers the same, and restart those that have others",
    meaning="The `[cluster]` sections of brokers differ.",
    action="Give all brokers the same, and restart those that have others.",
    fields=("differences",),
)
HEARTBEAT_FAILED: Final = Event(
    name="heartbeat_failed",
    level=Level.DEBUG,
    text="the controller did not answer a heartbeat",
    meaning="A heartbeat was not answered; the next one follows soon.",
    fields=("error",),
)
SHUTDOWN_UNANNOUNCED: Final = Event(
    name="shutdown_unannounced",
    level=Level.WARNING,
    text="the broker stops before its leaderships were handed over",
    meaning="The broker stops although its leaderships were not handed over first: clients of its "
    "partitions wait until it is fenced.",
    action="See why the controller did not answer.",
    fields=("error",),
)

# --- Replication ---------------------------------------------------------------------------------

FETCHING_ENDED: Final = Event(
    name="fetching_ended",
    level=Level.INFO,
    text="fetching ended",
    meaning="The stream to a leader broke; it is opened again.",
    action="Look at the leader if `fetching_resumed` does not follow.",
    fields=("leader", "error"),
)
FETCHING_RESUMED: Final = Event(
    name="fetching_resumed",
    level=Level.INFO,
    text="fetching goes on",
    meaning="The end of `fetching_ended`.",
    fields=("leader",),
)
FETCHING_FAILED: Final = Event(
    name="fetching_failed",
    level=Level.WARNING,
    text="fetching broke off",
    meaning="A leader's answer could not be used; the stream is opened again.",
    action="Look at the error.",
    fields=("leader", "error"),
)
BATCH_DAMAGED: Final = Event(
    name="batch_damaged",
    level=Level.WARNING,
    text="a batch came damaged",
    meaning="A checksum was wrong; the leader verifies its copy, and the batch is fetched again.",
    action="If it comes again and the leader stays, look at the memory and network of both.",
    fields=("partition", "error"),
)
RECORDS_TAKEN_BACK: Final = Event(
    name="records_taken_back",
    level=Level.WARNING,
    text="an unclean election took back records that this replica had",
    meaning="Records before `committed_offset` were acknowledged; later ones may have been.",
    action="See [Elections](clusters.md#elections).",
    fields=("topic", "partition", "start_offset", "end_offset", "committed_offset", "leader_epoch"),
)
REPLICA_HALTED: Final = Event(
    name="replica_halted",
    level=Level.ERROR,
    text="replica is halted",
    meaning="Going on would cut committed records off, so this replica stops until its partition "
    "has another leader.",
    action="Do what the error says.",
    fields=("partition", "error"),
)
PARTITION_OFFLINE: Final = Event(
    name="partition_offline",
    level=Level.ERROR,
    text="partition is offline",
    meaning="The log of one replica is damaged or cannot be written; another one leads if it can.",
    action="Do what the error says; see `millrace cluster health`.",
    fields=("partition", "error"),
)
COORDINATOR_NOT_LOADED: Final = Event(
    name="coordinator_not_loaded",
    level=Level.WARNING,
    text="a coordinator cannot be loaded yet",
    meaning="Groups, positions or transactional ids of this partition are not served; it is tried "
    "again.",
    action="Do what the error says if it stays.",
    fields=("topic", "partition", "error"),
)
GROUP_REBALANCES: Final = Event(
    name="group_rebalances",
    level=Level.INFO,
    text="the members of a group join again: %(reason)s",
    meaning="A member of a group of Kafka's classic protocol came, went, or said something else. "
    "Its leader assigns the partitions again. Many of these lines in a row say that members are "
    "too slow for their session or rebalance timeouts.",
    fields=("group", "generation", "reason"),
)
TRANSACTION_TIMED_OUT: Final = Event(
    name="transaction_timed_out",
    level=Level.WARNING,
    text="a transaction was open for longer than its time-out or lease, and is aborted",
    meaning="Its producer has died, waits for something, or takes longer than the time-out that "
    "it chose; or of many participants (`producer_id` is -1) none has renewed the lease. The next "
    "request is refused, and may begin again.",
    action="Look at the program if it happens often: end transactions earlier, or choose a longer "
    "time-out.",
    fields=("transactional_id", "producer_id", "timeout_ms"),
)
TRANSACTION_FENCED: Final = Event(
    name="transaction_fenced",
    level=Level.WARNING,
    text="a transaction was open when another producer, or run of an application, began with its "
    "id: it is aborted",
    meaning="The program was started again and has taken over from its last run, or two programs "
    "use one id. The producer before it, or the run (`producer_id` is -1), can write no more.",
    action="Nothing after a restart. If it goes on, give each program an id of its own.",
    fields=("transactional_id", "producer_id"),
)
MARKERS_OWED: Final = Event(
    name="markers_owed",
    level=Level.WARNING,
    text="the ends of decided transactions could not be written for long",
    meaning="Readers of committed records wait in these partitions. It is tried again for ever, "
    "and logged once a minute with the oldest transaction.",
    action="Do what `problem` says. `millrace transaction describe` shows all that one waits for.",
    fields=("transactions", "transactional_id", "duration_ms", "participant", "problem"),
)
MARKERS_WRITTEN: Final = Event(
    name="markers_written",
    level=Level.INFO,
    text="the ends of decided transactions are written again",
    meaning="The end of `markers_owed`.",
)
LAG_FAILED: Final = Event(
    name="lag_failed",
    level=Level.ERROR,
    text="a lag could not be measured",
    meaning="A bug: the lag of one log was asked for, and measuring it failed.",
    action="Report it, with the trace.",
    fields=("log",),
)
CHECK_FAILED: Final = Event(
    name="check_failed",
    level=Level.ERROR,
    text="checking a request failed",
    meaning="A bug: the request of one client was refused, and nothing of it was appended.",
    action="Report it, with the trace.",
)

# --- Logs and disks ------------------------------------------------------------------------------

LOG_DIR_FAILED: Final = Event(
    name="log_dir_failed",
    level=Level.ERROR,
    text="log directory failed",
    meaning="The replicas of this directory are offline; others lead their partitions if they can.",
    action="Replace the disk, and restart the broker.",
    fields=("log_dir", "error"),
)
LOG_DIR_MISSING: Final = Event(
    name="log_dir_missing",
    level=Level.WARNING,
    text="a log directory that this broker has used is not among its log_dirs",
    meaning="The replicas of that directory may be missing here.",
    action="Mount it, and name it in `log_dirs`; else its replicas are fetched again.",
    fields=("directory_ids", "log_dirs"),
)
SEEN_NOT_KEPT: Final = Event(
    name="seen_not_kept",
    level=Level.WARNING,
    text="a log directory did not store the versions of the metadata that were seen",
    meaning="A directory did not take the versions of the metadata that this broker has seen.",
    action="Look at the disk.",
    fields=("log_dir", "error"),
)
RELUCTANT_TO_LEAD: Final = Event(
    name="reluctant_to_lead",
    level=Level.WARNING,
    text="this broker is reluctant to lead",
    meaning="A disk is full or slow, so other brokers lead where they can.",
    action="Make room on the disk, or replace it.",
    fields=("reason", "log_dir"),
)
ABLE_TO_LEAD: Final = Event(
    name="able_to_lead",
    level=Level.INFO,
    text="this broker can lead again",
    meaning="The end of `reluctant_to_lead`.",
    fields=("log_dir",),
)
LOG_NOT_OPENED: Final = Event(
    name="log_not_opened",
    level=Level.WARNING,
    text="a log cannot be opened yet",
    meaning="A disk or a limit refuses for now; it is tried again.",
    action="Do what the error says if it stays.",
    fields=("partition", "error"),
)
LOG_NOT_CHANGED: Final = Event(
    name="log_not_changed",
    level=Level.WARNING,
    text="a log cannot be changed yet",
    meaning="A disk or a limit refuses for now; it is tried again.",
    action="Do what the error says if it stays.",
    fields=("partition", "error"),
)
LOG_NOT_SET_ASIDE: Final = Event(
    name="log_not_set_aside",
    level=Level.WARNING,
    text="a damaged log stays in its place",
    meaning="It could not be moved out of the way, so its replica is not fetched again yet.",
    action="Do what the error says if it stays.",
    fields=("partition", "error"),
)
LOG_SET_ASIDE: Final = Event(
    name="log_set_aside",
    level=Level.WARNING,
    text="a damaged log was set aside, and the replica is fetched again",
    meaning="The damaged files are kept in `kept_in`.",
    action="Look at the disk. Delete the files once `millrace cluster health` is content.",
    fields=("partition", "kept_in"),
)
FILE_REBUILT: Final = Event(
    name="file_rebuilt",
    level=Level.WARNING,
    text="a file beside a log was damaged, or another log's: it was made again from the log",
    meaning="An index or a checkpoint was wrong, and no record is lost.",
    action="Look at the disk if it happens again.",
    fields=("partition", "path"),
)
DELETED_LOG_NOT_CLOSED: Final = Event(
    name="deleted_log_not_closed",
    level=Level.WARNING,
    text="the log of a deleted topic could not be closed in order",
    meaning="The log of a deleted topic could not be closed; if it is brought back, it is checked.",
    action="Do what the error says.",
    fields=("partition", "error"),
)
REPLICA_NOT_DELETED: Final = Event(
    name="replica_not_deleted",
    level=Level.WARNING,
    text="a replica is not deleted yet",
    meaning="A disk or a limit refuses for now; it is tried again.",
    action="Do what the error says if it stays.",
    fields=("partition", "error"),
)
TOPICS_NOT_DELETED: Final = Event(
    name="topics_not_deleted",
    level=Level.WARNING,
    text="a deletion is not done yet",
    meaning="A disk or a limit refuses for now; it is tried again.",
    action="Do what the error says if it stays.",
    fields=("error",),
)
FLUSH_NOT_DONE: Final = Event(
    name="flush_not_done",
    level=Level.WARNING,
    text="a flush is not done yet",
    meaning="The process has no room for another open file; the flush is repeated.",
    action="Do what the error says if it stays.",
    fields=("error",),
)
RETENTION_REFUSED: Final = Event(
    name="retention_refused",
    level=Level.WARNING,
    text="retention could not delete old segments",
    meaning="Old segments of one log could not be deleted; it is tried again.",
    action="Do what the error says if it stays.",
    fields=("partition", "error"),
)
HOUSEKEEPING_REFUSED: Final = Event(
    name="housekeeping_refused",
    level=Level.WARNING,
    text="a disk refused a duty of housekeeping",
    meaning="A disk refused a duty, which is repeated.",
    action="Look at the disk.",
    fields=("duty", "log_dir", "error"),
)
LOG_COMPACTED: Final = Event(
    name="log_compacted",
    level=Level.INFO,
    text="a log was compacted",
    meaning="Records that newer ones replace were removed.",
    fields=("partition", "topic", "cleaner_point", "bytes_before", "bytes_after", "duration_ms"),
)
COMPACTION_REFUSED: Final = Event(
    name="compaction_refused",
    level=Level.WARNING,
    text="compacting a log was refused",
    meaning="The log stays as it is, and is left alone for a while.",
    action="Do what the error says; see [Compacted topics](compaction.md).",
    fields=("partition", "error"),
)
REPLICA_MOVES: Final = Event(
    name="replica_moves",
    level=Level.INFO,
    text="a replica moves to the media that its topic asks for",
    meaning="Its files are copied to another log directory of this broker.",
    fields=("partition", "source", "target"),
)
REPLICA_MOVED: Final = Event(
    name="replica_moved",
    level=Level.INFO,
    text="a replica has moved",
    meaning="The end of `replica_moves`.",
    fields=("partition", "source", "target"),
)
REPLICA_NOT_MOVED: Final = Event(
    name="replica_not_moved",
    level=Level.WARNING,
    text="a replica was not moved",
    meaning="It stays where it is; the move is tried again later.",
    action="Do what the error says; often the target disk is full.",
    fields=("partition", "source", "target", "error"),
)
REPLICA_MOVE_WAITS: Final = Event(
    name="replica_move_waits",
    level=Level.WARNING,
    text="a replica's appends wait for its move",
    meaning="The last step of a move is refused for now, and producers of the partition wait.",
    action="Do what the error says.",
    fields=("log_dir", "error"),
)
SEGMENT_MOVED: Final = Event(
    name="segment_moved",
    level=Level.INFO,
    text="a closed segment has moved between an SSD and an HDD",
    meaning="The log's records before `tier_end_offset` are on the HDD `log_dir`.",
    fields=("partition", "log_dir", "tier_end_offset"),
)
SEGMENT_NOT_MOVED: Final = Event(
    name="segment_not_moved",
    level=Level.WARNING,
    text="moving a segment between an SSD and an HDD was refused",
    meaning="The segment stays where it is and is read there; it is tried again.",
    action="Do what the error says if it stays.",
    fields=("partition", "log_dir", "error"),
)
TIERS_KEPT: Final = Event(
    name="tiers_kept",
    level=Level.WARNING,
    text="segments of partitions on another disk stay there: remove them by hand",
    meaning="These logs are gone from their SSDs, but this HDD refused to let go of its part.",
    action="Repair the disk and restart the broker, which removes those of deleted topics. Then "
    "remove the folders of the other partitions in `log_dir`.",
    fields=("log_dir", "partitions", "kept", "error"),
)
OLD_TIER_KEPT: Final = Event(
    name="old_tier_kept",
    level=Level.WARNING,
    text="segments that count no more stay where they are",
    meaning="The log is whole without them; they only take space.",
    action="Do what the error says, then remove the partition's folder in `log_dir`.",
    fields=("partition", "log_dir", "error"),
)
TIER_UNREADABLE: Final = Event(
    name="tier_unreadable",
    level=Level.WARNING,
    text="the segments of a partition on another disk stay there: remove them by hand",
    meaning="The damaged log does not say on which HDD its older segments are.",
    action="Look for the partition's folder in the log directories on HDDs, and remove it.",
    fields=("partition", "error"),
)
REPLICA_MOVE_SETTLED: Final = Event(
    name="replica_move_settled",
    level=Level.WARNING,
    text="a move to another log directory was interrupted: one of the two logs counts",
    meaning="The broker ended during a move; the log in `log_dir` counts, and the other one goes.",
    fields=("partition", "log_dir"),
)
STRANGE_FILE_KEPT: Final = Event(
    name="strange_file_kept",
    level=Level.WARNING,
    text="the folder of a deleted log stays: it holds files that the broker has not made",
    meaning="The folder of a deleted log holds files that the broker has not made.",
    action="Move them elsewhere, or delete the folder.",
    fields=("path",),
)

# --- Clients -------------------------------------------------------------------------------------

CONNECTIONS_EXHAUSTED: Final = Event(
    name="connections_exhausted",
    level=Level.WARNING,
    text="the listener has as many connections as it may, and refuses others",
    meaning="The listener has `limits.connections_max` connections.",
    action="Look at the host with most of them, or raise the setting.",
    fields=("listener", "connections", "connections_max", "closed", "most_from", "of_these"),
)
CONNECTIONS_CLOSED: Final = Event(
    name="connections_closed",
    level=Level.WARNING,
    text="connections that made no call were closed",
    meaning="Peers connected, and did not speak.",
    action="Look at the host with most of them.",
    fields=("listener", "connections", "connections_max", "closed", "most_from", "of_these"),
)
CONNECTION_REFUSED: Final = Event(
    name="connection_refused",
    level=Level.WARNING,
    text="a connection from %(address)s was ended: %(reason)s",
    meaning="A peer broke the rules of DRPC, was silent or too slow, or there were too many "
    "connections. At most one line in ten seconds; `closed` counts those since the last one.",
    action="Look at the program at that address.",
    fields=("listener", "address", "reason", "closed"),
)
CERTIFICATE_RENEWED: Final = Event(
    name="certificate_renewed",
    level=Level.INFO,
    text="listener %(listener)s shows another certificate, which ends at %(ends)s",
    meaning="The files of a listener's certificate or of its authorities have changed. "
    "Connections that are there stay; new ones are made with the new files.",
    fields=("listener", "ends"),
)
CERTIFICATE_UNUSABLE: Final = Event(
    name="certificate_unusable",
    level=Level.ERROR,
    text="the changed certificates of listener %(listener)s cannot be used, and the last ones "
    "stay: %(error)s",
    meaning="A file is missing, damaged, or does not fit the others. It is logged once for each "
    "reason, and the files are tried again every second.",
    action="Correct the files that the line names. No restart is needed.",
    fields=("listener", "error"),
)
METRICS_FILES_UNUSABLE: Final = Event(
    name="metrics_files_unusable",
    level=Level.ERROR,
    text="the changed certificate or token of the metrics page cannot be used, and the last one "
    "stays: %(error)s",
    meaning="A file is missing, damaged, or does not fit the others. It is logged once for each "
    "reason, and the files are looked at again when the page is asked for.",
    action="Correct the file that the line names. No restart is needed.",
    fields=("error",),
)
CERTIFICATE_EXPIRES: Final = Event(
    name="certificate_expires",
    level=Level.WARNING,
    text="the certificate of listener %(listener)s ends at %(ends)s",
    meaning="It ends within a week, and less than a tenth of its lifetime is left. It is logged "
    "every six hours until there is another one.",
    action="Renew it, and put it into its file: it counts at once. See "
    "[TLS](security.md#renew-certificates).",
    fields=("listener", "ends"),
)
CERTIFICATE_EXPIRED: Final = Event(
    name="certificate_expired",
    level=Level.ERROR,
    text="the certificate of listener %(listener)s has ended at %(ends)s: new connections fail",
    meaning="The broker runs, and those that try to connect refuse its certificate. Connections "
    "that are there stay.",
    action="As for `certificate_expires`.",
    fields=("listener", "ends"),
)
CALL_FAILED: Final = Event(
    name="call_failed",
    level=Level.ERROR,
    text="a call failed unexpectedly",
    meaning="A bug of the broker; the caller got an error.",
    action="Report it with the trace.",
)
CONNECTIONS_UNKNOWN: Final = Event(
    name="connections_unknown",
    level=Level.DEBUG,
    text="connections could not be looked at: %(error)s",
    meaning="The broker could not list its sockets; it looks again.",
    fields=("error",),
)
_REQUEST_FIELDS: Final = (
    *CALLER_FIELDS,
    "request",
    "entries",
    "entry_count",
    "outcome",
    "refused",
    "refused_count",
    "error",
    "appended",
)
ADMINISTRATIVE_REQUEST: Final = Event(
    name="administrative_request",
    level=Level.INFO,
    text="administrative request",
    meaning="A client changed the cluster, or may have. It is logged at the broker that decided "
    "it: the controller, or a partition's leader for the deletion of records and the abort of an "
    "open transaction, or the coordinator of a group or a transactional id.",
    fields=_REQUEST_FIELDS,
)
ADMINISTRATIVE_REQUEST_REFUSED: Final = Event(
    name="administrative_request_refused",
    level=Level.WARNING,
    text="administrative request, refused",
    meaning="A client tried to change the cluster, and nothing was changed.",
    action="Correct the client, as `refused` and `error` say.",
    fields=_REQUEST_FIELDS,
)
CALLER_REFUSED: Final = Event(
    name="caller_refused",
    level=Level.WARNING,
    text="a caller was refused",
    meaning="A client's request was refused by its own fault, or since the broker is busy. It is "
    "logged at the broker that refused it.",
    action="Correct the client. Against a client that does not stop, set a [quota](quotas.md).",
    fields=(*CALLER_FIELDS, "method", "error"),
)
CREDENTIAL_REFUSED: Final = Event(
    name="credential_refused",
    level=Level.WARNING,
    text="a caller could not be identified",
    meaning="A call came with a token that proves nothing here: it is unknown, was removed, has "
    "ended, or is none. Or its certificate has a name of Kubernetes' own. The caller is not told "
    "why.",
    action="Give the client another token (`millrace token new`). If none should come from that "
    "address, close the port to it.",
    fields=(*CALLER_FIELDS, "method", "reason"),
)
ACCESS_WOULD_BE_REFUSED: Final = Event(
    name="access_would_be_refused",
    level=Level.WARNING,
    text="a caller does what will be refused",
    meaning="`access.enforced` is false: the caller proves nothing, or may not do what it does, "
    "and is let through until access control is enforced.",
    action="Give the client a token and the right, or close the port to it. Then enforce access "
    "control: [security](security.md#a-running-cluster-goes-to-tls-and-access).",
    fields=(*CALLER_FIELDS, "method", "reason"),
)
AUTHORITY_AWAY: Final = Event(
    name="authority_away",
    level=Level.WARNING,
    text="the Kubernetes API server does not say who may do what: %(error)s",
    meaning="A question about a caller has no answer. Those who were known and allowed go on for "
    "15 minutes; others are told to try again.",
    action="If the API server refuses the question, give the brokers' ServiceAccount the rights "
    "of docs/security.md.",
    fields=("error",),
)
AUTHORITY_BACK: Final = Event(
    name="authority_back",
    level=Level.INFO,
    text="the Kubernetes API server says again who may do what",
    meaning="It answers questions about callers again.",
)
ACCESS_FILE_TAKEN: Final = Event(
    name="access_file_taken",
    level=Level.INFO,
    text="who may do what has changed: %(file)s",
    meaning="The file of tokens or of rules was read again, and counts from now on.",
    fields=("file",),
)
ACCESS_FILE_REFUSED: Final = Event(
    name="access_file_refused",
    level=Level.ERROR,
    text="a file that says who may do what is left as it was: %(error)s",
    meaning="The file of tokens or of rules has changed, and has a mistake, or is away; or there "
    "are no rules in it any more. What it said before goes on, also for tokens that were removed "
    "meanwhile.",
    action="Correct the file, as the error says. The metric `millrace_access_file_refused` is 0 "
    "when the broker has taken it.",
    fields=("file", "error"),
)
ACCESS_IS_OPEN: Final = Event(
    name="access_is_open",
    level=Level.WARNING,
    text="every client that reaches the broker may do everything",
    meaning="A listener for clients can be reached from other machines, and nothing says who may "
    "do what. Either `insecure` is set, or every caller with a certificate is let in.",
    action="Set `access.tokens_file` and `access.rules_file`: see [security](security.md).",
    fields=("address",),
)
OLDER_COPY_ACCEPTED: Final = Event(
    name="older_copy_accepted",
    level=Level.WARNING,
    text="a broker starts with an older copy of its disk, which counts as lost",
    meaning="A person accepted it with `node.accept_older_copy`, or the pod's annotation. The "
    "copy names the life `copy_epoch`, and the disk of the life `lost_epoch` is given up.",
    action="None, if you did that. Records that no other replica has are lost.",
    fields=("broker", "copy_epoch", "lost_epoch"),
)
AUDIT_REPEATED: Final = Event(
    name="audit_repeated",
    level=Level.WARNING,
    text="a client went on with what was logged: this line has the sum",
    meaning="The sum of what one client repeated within ten seconds.",
    action="As for `event_repeated`, which is the event that was repeated.",
    fields=(*CALLER_FIELDS, "event_repeated", "method", "repeats"),
)
AUDIT_LEFT_OUT: Final = Event(
    name="audit_left_out",
    level=Level.WARNING,
    text="more clients and requests than the audit log takes",
    meaning="Within ten seconds there were more different ones than `logging.audit_lines_max`.",
    action="Look at the lines before it; raise the setting if these clients are in order.",
    fields=("lines",),
)

FIELDS: Final = {
    "address": "`host:port`; of a caller, from which it is connected",
    "allowed": "what is possible instead of what is configured",
    "appended": "`NO`, or `MAYBE`: it may have been done nevertheless",
    "at": "address of the broker at the other end",
    "bytes_after": "size of the log",
    "bytes_before": "size of the log",
    "cleaner_point": "offset up to which the log is compacted",
    "client_id": "the name that a client gives itself",
    "closed": "connections that were closed since the last such line",
    "cluster_id": "the cluster's id",
    "committed_offset": "records before it were acknowledged",
    "connections": "open ones",
    "copy_epoch": "the last life that used the copy of the disk",
    "connections_max": "as configured",
    "differences": "the settings, with both values",
    "directory_ids": "ids of log directories",
    "duration_ms": "how long it took",
    "duty": "what was to be done",
    "end_offset": "offset after the last record",
    "ends": "when the certificate ends, UTC",
    "entries": "the first 20 entries of a request, as `orders`",
    "entry_count": "how many entries it has",
    "event_repeated": "the name of the event",
    "generation": "number of the generation that ends",
    "first": "the first 20 partitions, with the ends of their logs",
    "kept": "the first 20 partitions whose segments stay",
    "kept_in": "folder with the damaged files",
    "leader": "the leader's broker id",
    "leader_epoch": "the leader's epoch",
    "listener": "`clients`, `outside` or `brokers`",
    "log": "folder of the log",
    "log_dir": "the log directory",
    "log_dirs": "the configured log directories",
    "log_end_offset": "end of the new leader's log; none: unknown",
    "lost_epoch": "the last life that used the disk that is given up",
    "method": "the name of the call, or of the request",
    "most_from": "host with the most connections",
    "of_these": "how many of the connections it has",
    "open_files": "how many files the process may open",
    "outcome": "`done`, `refused`, `partly refused`, or `failed`: it failed as a whole",
    "participant": "a partition in which the transaction wrote, or a group",
    "producer_id": "id of the producer",
    "principal": "the proved identity of a client",
    "refused": "the refused entries, with the name of the error of each",
    "refused_count": "how many entries were refused",
    "repeats": "how often it was seen again",
    "request": "what was asked for, as `create_topics`",
    "software": "the client's library and version, as it says",
    "source": "from where",
    "start_offset": "offset of the first record",
    "target": "to where",
    "tier_end_offset": "records before it are on an HDD",
    "timeout_ms": "the time-out that its producer chose",
    "topic_id": "its id",
    "transactional_id": "the transactional id, with its namespace",
    "transactions": "how many transactions",
    "where": "what was being done",
}
"""The meaning of each field that only these events have. `millrace.core.events` has the others."""
