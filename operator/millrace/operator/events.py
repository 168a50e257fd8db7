"""The events that the operator logs. `millrace.core.events` has the idea.

What it changes goes to the audit log, as the acts of clients do at the brokers.
"""

from typing import Final

from millrace.core.events import Event, Level

OPERATOR_ACTS: Final = Event(
    name="operator_acts",
    level=Level.INFO,
    text="this operator acts",
    meaning="It holds the lease, and looks after the clusters.",
)
OPERATOR_WAITS: Final = Event(
    name="operator_waits",
    level=Level.INFO,
    text="this operator waits",
    meaning="Another one holds the lease, or the lease cannot be renewed.",
)
OPERATOR_PAGE_FILES_UNUSABLE: Final = Event(
    name="operator_page_files_unusable",
    level=Level.ERROR,
    text="the changed certificate or token of the metrics page cannot be used, and the last one "
    "stays: %(error)s",
    meaning="A file is missing, damaged, or does not fit the others. It is logged once for each "
    "reason, and the files are looked at again when the page is asked for.",
    action="Correct the Secret that the line names a file of. No restart is needed.",
    fields=("error",),
)
OPERATOR_LEASE_UNRENEWED: Final = Event(
    name="operator_lease_unrenewed",
    level=Level.WARNING,
    text="the operator's lease cannot be renewed",
    meaning="The API server does not answer, or refuses.",
    action="Look at the API server, and at the operator's role.",
    fields=("error",),
)
RESOURCES_NOT_LISTED: Final = Event(
    name="resources_not_listed",
    level=Level.WARNING,
    text="resources cannot be listed",
    meaning="The API server does not answer, or refuses. It is asked again.",
    action="Look at the API server, and at the operator's role.",
    fields=("error",),
)
WORK_FAILED: Final = Event(
    name="work_failed",
    level=Level.WARNING,
    text="the work on a cluster failed, and is tried again",
    meaning="A step of the work on a Cluster, its Topics or its Quotas failed.",
    action="Do what the error says. A trace means a bug: report it.",
    fields=("work", "in_s", "error"),
)
REPLICA_NOT_MOVABLE: Final = Event(
    name="replica_not_movable",
    level=Level.WARNING,
    text="a replica cannot move",
    meaning="The controller refused to move it; it is tried again.",
    action="Do what the error says.",
    fields=("partition", "error"),
)

# --- The audit log -------------------------------------------------------------------------------

OBJECT_CHANGED: Final = Event(
    name="object_changed",
    level=Level.INFO,
    text="an object of Kubernetes changes",
    meaning="The operator created, changed or deleted an object that belongs to a Cluster.",
    fields=("act", "kind", "namespace", "object"),
)
BROKER_RESTARTED: Final = Event(
    name="broker_restarted",
    level=Level.INFO,
    text="restarting a broker",
    meaning="The operator deletes the pod, which begins again.",
    fields=("pod", "reason"),
)
BROKERS_SCALED: Final = Event(
    name="brokers_scaled",
    level=Level.INFO,
    text="brokers come or go",
    meaning="The operator drains brokers that shall go, takes drains back, forgets brokers that "
    "are gone, or moves replicas.",
    fields=("drained", "undrained", "unregistered", "partitions"),
)
TOPIC_CHANGED: Final = Event(
    name="topic_changed",
    level=Level.INFO,
    text="topic changed",
    meaning="The operator created or changed a topic, or moves its replicas.",
    fields=("topic", "step"),
)
TOPIC_DELETED: Final = Event(
    name="topic_deleted",
    level=Level.INFO,
    text="topic deleted",
    meaning="The operator deleted the topic of a Topic that is deleted.",
    fields=("topic",),
)
TOPIC_KEPT: Final = Event(
    name="topic_kept",
    level=Level.WARNING,
    text="topic kept, though its Topic is deleted",
    meaning="The namespace of the Topic is being deleted, and its cluster is paused, or did not "
    "delete the topic within a minute. So the Topic goes, and the topic stays with its records.",
    action="Delete the topic with `millrace topic delete` once that is possible.",
    fields=("topic", "reason"),
)
QUOTA_SET: Final = Event(
    name="quota_set",
    level=Level.INFO,
    text="quota set",
    meaning="The operator set a quota.",
    fields=("quota",),
)
QUOTA_DELETED: Final = Event(
    name="quota_deleted",
    level=Level.INFO,
    text="quota deleted",
    meaning="The operator deleted a quota.",
    fields=("quota",),
)
QUOTA_KEPT: Final = Event(
    name="quota_kept",
    level=Level.WARNING,
    text="quota kept, though its Quota is deleted",
    meaning="The namespace of the Quota is being deleted, and its cluster is paused, or did not "
    "delete the quota within a minute. So the Quota goes, and the quota counts on.",
    action="Delete the quota with `millrace quota delete` once that is possible.",
    fields=("quota", "reason"),
)

FIELDS: Final = {
    "act": "`apply`, `patch` or `delete`",
    "drained": "ids of brokers",
    "in_s": "seconds until the next attempt",
    "kind": "kind of the object",
    "namespace": "namespace in Kubernetes",
    "object": "name of the object",
    "pod": "name of the pod",
    "quota": "the quota, or its name",
    "step": "what was done",
    "undrained": "ids of brokers",
    "unregistered": "ids of brokers",
    "work": "`cluster`, `topics` or `quotas`",
}
"""The meaning of each field that only these events have. `millrace.core.events` has the others."""
