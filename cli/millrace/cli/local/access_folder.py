"""The folder of `millrace up --access`: rules, tokens, and a first token that may do everything."""

from pathlib import Path
from typing import Final, NamedTuple

from millrace.cli.files.token_store import add_token, write_privately

FIRST: Final = "admin"
"""Who has the first token."""
_RULES: Final = f"""\
# Who may do what. Nobody may do anything that no rule allows. Brokers read this file again when it
# changes. docs/security.md explains it.

[[rules]]
who = ["{FIRST}"]
may = ["produce", "consume", "describe", "create", "alter", "delete", "transact", "administer"]
topics = ["*/*", "default/__*"]    # The second name: the cluster's own topics.
groups = ["*/*"]
transactions = ["*/*"]
cluster = true

# [[rules]]
# who = ["shop-orders"]              # `millrace token new shop-orders` makes its token
# may = ["produce", "describe"]
# topics = ["shop/*"]
"""


class AccessFolder(NamedTuple):
    """Where everything is.

    Attributes:
        rules: who may do what.
        tokens: whom tokens prove.
        first_token: of whom may do everything; made with the folder.
    """

    rules: Path
    tokens: Path
    first_token: Path

    @property
    def settings(self) -> dict[str, str]:
        """What brokers are told of it: the section `[access]`."""
        return {"rules_file": str(self.rules), "tokens_file": str(self.tokens)}


def access_folder(path: Path) -> AccessFolder:
    """Return the files of a folder; those that are not there are made.

    A token is made only where there are no tokens.

    Raises:
        Failure: a file there has a mistake.
    """
    folder = path.absolute()
    found = AccessFolder(folder / "rules.toml", folder / "tokens", folder / f"{FIRST}.token")
    folder.mkdir(parents=True, exist_ok=True)
    if not found.rules.exists():
        write_privately(found.rules, _RULES)
    if not found.tokens.exists():
        token, _ = add_token(found.tokens, FIRST)
        write_privately(found.first_token, token + "\n")
    return found
