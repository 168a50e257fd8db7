"""Golden transcripts: commands to a machine, and all that it answered.

    # What follows is about.

    append first records=3
    ----
    first has offsets 0 to 2
    next=3 written=0 flushed=0 high_watermark=0

A block is one command, a line of dashes, and the answer up to the next empty line. The idea is
that of etcd/raft's data-driven tests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

_DASHES = "----"


@dataclass(frozen=True, slots=True)
class Command:
    """One line: a verb, words, and numbers or texts by name."""

    verb: str
    words: list[str]
    named: dict[str, str] = field(default_factory=dict)

    def number(self, name: str, default: int | None = None) -> int:
        """Return a number by its name."""
        if name not in self.named:
            assert default is not None, f"{self.verb} needs {name}="
            return default
        return int(self.named[name])


def replayed(text: str, run: Callable[[Command], list[str]]) -> str:
    """Return a transcript with the answers that `run` gives."""
    blocks = []
    for block in text.strip().split("\n\n"):
        if block.startswith("#"):
            blocks.append(block)
            continue
        line = block.splitlines()[0]
        blocks.append("\n".join([line, _DASHES, *run(_parse(line))]))
    return "\n\n".join(blocks) + "\n"


def _parse(line: str) -> Command:
    verb, *rest = line.split()
    named = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(verb, [word for word in rest if "=" not in word], named)
