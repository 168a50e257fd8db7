"""Files of tokens and of rules for simulated brokers, and who their callers are.

Brokers read the files on a thread, as they do outside of tests. All shipped clients of a run have
one token, of somebody who may do everything; clients of Kafka log in as whom their work needs. The
rules change while the run goes on: `changing` may read the topic at one time, and not at another.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tests.sim.machines.small_files import SmallFiles
from tests.sim.world import SECOND

from millrace.core.broker_config import AccessConfig
from millrace.core.guard.token_file import new_entry, tokens_to_text

if TYPE_CHECKING:
    from tests.sim.machines.coordination import SimulatedStore

WORKER: Final = "worker"
"""May do everything."""
READER: Final = "reader"
WRITER: Final = "writer"
CHANGING: Final = "changing"
"""May read at times."""
STRANGER: Final = "stranger"
"""Has a token, and no rule names it."""
IMPOSTOR: Final = "impostor"
"""Shows a token that nobody has given out."""
_RULES: Final = "/rules.toml"
_TOKENS: Final = "/tokens"
_RULES_TEXT: Final = """
[[rules]]
who = ["worker"]
may = ["produce", "consume", "describe", "create", "alter", "delete", "transact", "administer"]
topics = ["*/*", "*/__*"]
groups = ["*/*"]
transactions = ["*/*"]
cluster = true

[[rules]]
who = ["reader"{also}]
may = ["consume", "describe"]
topics = ["default/t"]

[[rules]]
who = ["writer"]
may = ["produce", "describe"]
topics = ["default/t"]
"""


class Login(NamedTuple):
    """As whom a client of Kafka logs in.

    Attributes:
        name: of the principal.
        token: that proves it.
        has_password: whether brokers recognise the token as a password (SCRAM).
    """

    name: str
    token: str
    has_password: bool = True


class Rights(Protocol):
    """Who callers are, and what they may.

    Attributes:
        may_read: whether `CHANGING` may read the topic now.
        token_file: path of the file with the token of shipped clients.
        taken_us: after so long brokers go by what has changed.
        changes_every_us: how often that is.
    """

    may_read: bool
    token_file: str
    taken_us: int
    changes_every_us: int

    def access(self, *, is_enforced: bool) -> AccessConfig:
        """Return the settings of brokers."""

    def login_of(self, name: str) -> Login:
        """Return the name and token of somebody."""

    def change(self) -> None:
        """Let `CHANGING` read, or not any more."""

    def serving(self, store: "SimulatedStore") -> AbstractContextManager[None]:
        """Let brokers go by them for the length of the block."""


class RuleFiles:
    """The files of one run; implements `Rights`."""

    taken_us = 5 * SECOND
    """Brokers look at their rules every second, and those that begin have read them."""
    changes_every_us = 12 * SECOND

    def __init__(self) -> None:
        self.may_read = False
        self.token_file = "/token"
        self._files = SmallFiles()
        self._files.write(self.token_file, self.login_of(WORKER).token)
        self._write_rules()
        known = [self.login_of(name) for name in (WORKER, READER, WRITER, CHANGING, STRANGER)]
        entries = [new_entry(each.token, each.name, [], None, b"s" * 16) for each in known]
        self._files.write(_TOKENS, tokens_to_text(entries))

    def access(self, *, is_enforced: bool) -> AccessConfig:
        """Return the settings of brokers."""
        return AccessConfig(rules_file=_RULES, tokens_file=_TOKENS, enforced=is_enforced)

    def login_of(self, name: str) -> Login:
        """Return the name and token of somebody."""
        return Login(name, f"mlr_{name}_{'x' * 30}")

    def change(self) -> None:
        """Let `CHANGING` read, or not any more."""
        self.may_read = not self.may_read
        self._write_rules()

    def serving(self, store: "SimulatedStore") -> AbstractContextManager[None]:
        """Let brokers and clients read the files."""
        del store
        return self._files.served()

    def _write_rules(self) -> None:
        also = f', "{CHANGING}"' if self.may_read else ""
        self._files.write(_RULES, _RULES_TEXT.format(also=also))
