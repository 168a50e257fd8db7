"""Which objects of a cluster changed: a list and a watch of each kind, in threads of their own.

A round lists a kind's metadata, names every object that is not as the round before left it, and
watches from there on. Whatever ends the watch ends the round, and the next one lists again: a
stream that broke off, a history that is gone (410), and the time after which every watch is begun
anew. So an event that was lost on the way is found out by then, and one that comes late, twice or
in the wrong order costs its reader a look at an object that did not change (F44). Nothing is
believed of an event but a name.
"""

import contextlib
import secrets
import threading
import time
from typing import Any, Final

import urllib3

from millrace.broker.coordination.kubernetes.api import METADATA_LIST, KubernetesApi, events
from millrace.broker.coordination.kubernetes.resources import (
    CLUSTER_STATE,
    STATE_SHARD,
    ClusterResources,
    Kind,
)
from millrace.broker.coordination.store import (
    CoordinationUnavailableError,
    Revision,
    StoreChanges,
)
from millrace.core.errors import InvalidConfigError, MillraceError

_ROUND_S_MIN: Final = 0.2  # Rounds of one kind begin no closer together.


class ObjectWatcher:
    """See the module. Any number of threads may wait; the first one starts the watching.

    Args:
        api: of the watcher alone: each watch keeps a connection busy.
        interval_ms: after which a watch is begun anew.
    """

    def __init__(self, api: KubernetesApi, resources: ClusterResources, interval_ms: int) -> None:
        self._api = api
        self._resources = resources
        self._interval_s = max(1, interval_ms // 1000)
        self._instance = secrets.token_hex(4)  # Revisions mean nothing to another watcher.
        self._condition = threading.Condition()
        # Guarded by the condition.
        self._sequence = 0
        self._changed: dict[str, int] = {}  # By key, at which sequence last.
        self._trouble: dict[Kind, MillraceError] = {}
        self._streams: dict[Kind, urllib3.BaseHTTPResponse] = {}
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def wait(self, since: Revision, timeout_ms: int) -> StoreChanges:
        """See `CoordinationStore.wait_for_changes`.

        Raises:
            CoordinationUnavailableError: the watches are broken, and nothing is known of changes.
        """
        instance, _, number = since.partition("/")
        after = int(number) if instance == self._instance else 0
        with self._condition:
            self._start()
            self._condition.wait_for(lambda: self._sequence > after, timeout_ms / 1000)
            keys = tuple(key for key, at in self._changed.items() if at > after)
            if keys:
                return StoreChanges(Revision(f"{self._instance}/{self._sequence}"), keys)
            for trouble in self._trouble.values():
                raise trouble
            return StoreChanges(since, ())

    def close(self) -> None:
        """End the threads."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
            for stream in self._streams.values():
                # It ended meanwhile, otherwise.
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    stream.shutdown()
        for thread in self._threads:
            thread.join()
        self._api.close()

    def _start(self) -> None:
        if not self._threads:
            for kind in (CLUSTER_STATE, STATE_SHARD):
                thread = threading.Thread(
                    target=self._run, args=(kind,), name=f"watch-{kind.plural}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _run(self, kind: Kind) -> None:
        seen: dict[str, str] = {}  # Resource versions by name.
        while True:
            begun_at = time.monotonic()
            trouble: MillraceError | None = None
            try:
                self._round(kind, seen)
            except (CoordinationUnavailableError, InvalidConfigError) as error:
                trouble = error
            except (AttributeError, KeyError, TypeError) as error:
                trouble = CoordinationUnavailableError(f"a watch was not understood: {error!r}")
            with self._condition:
                self._streams.pop(kind, None)
                if trouble is not None:
                    self._trouble[kind] = trouble
                left_s = begun_at + _ROUND_S_MIN - time.monotonic()
                if self._condition.wait_for(lambda: self._is_closed, max(0.0, left_s)):
                    return

    def _round(self, kind: Kind, seen: dict[str, str]) -> None:
        path = self._resources.listing(kind)
        answer = self._api.request("GET", path, accept=METADATA_LIST)
        if not answer.is_success:
            raise InvalidConfigError(
                f"{kind.plural}.millrace.dev cannot be listed ({answer.message}): are the custom "
                "resource definitions of crds/ installed?"
            )
        found: dict[str, str] = {}
        for item in answer.document.get("items") or ():
            metadata = item["metadata"]
            found[metadata["name"]] = metadata["resourceVersion"]
        names = [name for name in {**seen, **found} if seen.get(name) != found.get(name)]
        seen.clear()
        seen.update(found)
        with self._condition:
            self._trouble.pop(kind, None)
            self._note(kind, names)
        revision = answer.document["metadata"]["resourceVersion"]
        query = f"&watch=1&allowWatchBookmarks=true&resourceVersion={revision}"
        with self._api.watch(path + query, self._interval_s) as stream:
            with self._condition:
                if self._is_closed:
                    return
                self._streams[kind] = stream
            for event_type, metadata_object in events(stream):
                if event_type == "ERROR":  # 410 as a rule: what follows is not known here any more.
                    return
                if event_type != "BOOKMARK":
                    self._on_event(kind, event_type, metadata_object["metadata"], seen)

    def _on_event(
        self, kind: Kind, event_type: str, metadata: dict[str, Any], seen: dict[str, str]
    ) -> None:
        name = metadata["name"]
        if event_type == "DELETED":
            seen.pop(name, None)
        else:
            seen[name] = metadata["resourceVersion"]
        with self._condition:
            self._note(kind, [name])

    def _note(self, kind: Kind, names: list[str]) -> None:
        keys = [self._resources.key_of(kind, name) for name in names]
        for key in keys:
            if key is not None:
                self._sequence += 1
                self._changed[key] = self._sequence
        self._condition.notify_all()
