"""Files of tokens and of rules for simulated brokers, and who their callers are.

The files are real ones, in a folder of the run: brokers read them on a thread, as they do outside
of tests. All shipped clients of a run have one token, of somebody who may do everything; clients of
Kafka log in as whom their work needs. The rules change while the run goes on: `changing` may read
the topic at one time, and not at another.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from millrace.core.broker_config import AccessConfig
from millrace.core.guard.token_file import new_entry, tokens_to_text

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
_RULES: Final = """
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
    """As whom a client of Kafka logs in."""

    name: str
    token: str


def login_of(name: str) -> Login:
    """Return the name and token of somebody."""
    return Login(name, f"mlr_{name}_{'x' * 30}")


class RuleFiles:
    """The files of one run; they are removed when it ends.

    Attributes:
        may_read: whether `CHANGING` may read the topic, as the file has it now.
    """

    def __init__(self) -> None:
        self.may_read = False
        self._folder = Path(tempfile.mkdtemp(prefix="millrace-sim-"))
        self._rules = self._folder / "rules.toml"
        self._tokens = self._folder / "tokens"
        self.write_rules(may_read=False)
        known = [login_of(name) for name in (WORKER, READER, WRITER, CHANGING, STRANGER)]
        entries = [new_entry(token, name, [], None, b"s" * 16) for name, token in known]
        _replace(self._tokens, tokens_to_text(entries))
        self.token_file = self._folder / "token"
        self.token_file.write_text(login_of(WORKER).token)

    def access(self, *, is_enforced: bool) -> AccessConfig:
        """Return the settings of brokers."""
        return AccessConfig(
            rules_file=str(self._rules), tokens_file=str(self._tokens), enforced=is_enforced
        )

    def write_rules(self, *, may_read: bool) -> None:
        """Change the rules."""
        self.may_read = may_read
        _replace(self._rules, _RULES.format(also=f', "{CHANGING}"' if may_read else ""))

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _replace(path: Path, text: str) -> None:
    """Replace a file at once."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)
