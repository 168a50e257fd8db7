"""What is fuzzed: whatever bytes come, a typed error or a right answer, in bounded memory and time.

A target is a function `fuzz_<name>` of one of the modules here; `mutate_<name>`, if there is one,
changes an input by what it means. Only the module of a target is imported for it, so that the
fuzzer has no other code to instrument.
"""

from collections.abc import Callable
from importlib import import_module
from random import Random
from types import ModuleType
from typing import Final

_MODULES: Final = {
    "answers": ("answers",),
    "clients": ("cli_files", "kubeconfig", "spark_checkpoint"),
    "guard": (
        *("access_reviews", "authorizer", "certificate_names", "certificates"),
        *("published_keys", "rules_file", "service_account_token", "token_file"),
    ),
    "kafka_batches": (
        *("kafka_batch", "kafka_compression", "kafka_converted", "kafka_stored", "kafka_walk"),
    ),
    "kafka": ("kafka_fetch", "kafka_frames", "kafka_produce", "kafka_requests"),
    "settings": ("broker_config", "names", "patterns", "quotas", "topic_config"),
    "stored": (
        *("cluster_object", "coordinator_records", "index_file", "producer_snapshot"),
        *("sealed_files", "shard_object", "transaction_records"),
    ),
    "wire": (
        *("batch", "call_metadata", "compression", "drpc_bodies", "drpc_frames", "hot_messages"),
        *("requests", "web_request", "web_values"),
    ),
}
TARGETS: Final = tuple(sorted(name for names in _MODULES.values() for name in names))
"""The names of all targets."""


def load(target: str) -> Callable[[bytes], None]:
    """Return the function of a target."""
    function: Callable[[bytes], None] = getattr(_module_of(target), f"fuzz_{target}")
    return function


def load_changes(target: str) -> Callable[[bytes, Random], bytes] | None:
    """Return what changes an input of a target by what it means; None: only its bytes change."""
    return getattr(_module_of(target), f"mutate_{target}", None)


def _module_of(target: str) -> ModuleType:
    (name,) = (name for name, names in _MODULES.items() if target in names)
    return import_module(f"tests.fuzz.{name}")
