"""`python -m tests.fuzz TARGET SECONDS`: look for input that breaks a target, guided by coverage.

What it learns is kept in .fuzz/TARGET, which git ignores, and begins with tests/fuzz/corpus/TARGET.
An input that breaks the target is printed and written to .fuzz/: put it into the corpus, with the
mend, where every test run tries it again.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import process_time

import atheris
from tests.fuzz.running import memory_line

ROOT = Path(__file__).resolve().parents[2]
INPUT_BYTES_MAX = 2048
BUSY_SECONDS_MAX = 5
HANG_SECONDS = 30
SAID_EACH_SECONDS = 0.1
"""Of the processor's time."""
NOT_FOLLOWED = [
    f"millrace.core.records.{name}" for name in ("arrow_views", "kafka_records", "kafka_walk")
]
"""Atheris keeps 200 bytes for each comparison of arrays that it follows: that is no growth of ours.
"""


def main(target: str, seconds: int) -> None:
    with atheris.instrument_imports(include=["millrace"], exclude=NOT_FOLLOWED):
        from tests.fuzz.targets import load, load_changes

        function, changes = load(target), load_changes(target)
    learned, corpus = ROOT / ".fuzz" / target, ROOT / "tests" / "fuzz" / "corpus" / target
    learned.mkdir(parents=True, exist_ok=True)
    dictionary = learned.with_suffix(".words")
    # An empty dictionary is none for libFuzzer.
    words = words_of(corpus) or ["millrace"]
    dictionary.write_text("".join(f'"{word}"\n' for word in words))
    atheris.Setup(
        [
            "tests.fuzz",
            str(learned),
            str(corpus),
            f"-dict={dictionary}",
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-timeout={HANG_SECONDS}",
            "-rss_limit_mb=1024",  # No input takes memory without bounds.
            "-print_final_stats=1",
            f"-artifact_prefix={learned.parent}/{target}-",
        ],
        quick(function),
        **({} if changes is None else {"custom_mutator": half_by_meaning(changes)}),
    )
    atheris.Fuzz()


def quick(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a target that also fails for an input that keeps the processor busy for long.

    Time on the clock would also be that of other processes. It says now and then how much memory
    the process has: the fuzzer tells the most that it ever had, and an input may take some for a
    moment.
    """
    executions, due_s = 0, 0.0

    def run(data: bytes) -> None:
        nonlocal executions, due_s
        begun = process_time()
        if begun >= due_s:
            due_s = begun + SAID_EACH_SECONDS
            print(memory_line(executions, resident_bytes()), file=sys.stderr)
        executions += 1
        function(data)
        busy_s = process_time() - begun
        assert busy_s < BUSY_SECONDS_MAX, f"the input took {busy_s:.1f} s"

    return run


def resident_bytes() -> int:
    """Return how much memory this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def half_by_meaning(change: Callable[[bytes, Random], bytes]) -> Callable[[bytes, int, int], bytes]:
    """Return a mutator that changes bytes in half of the cases, and else what they mean."""

    def mutate(data: bytes, most_bytes: int, seed: int) -> bytes:
        dice = Random(seed)
        changed = change(data, dice) if dice.random() < 0.5 else data
        if changed == data or len(changed) > most_bytes:
            changed = bytes(atheris.Mutate(data, most_bytes))
        return changed

    return mutate


def words_of(corpus: Path) -> list[str]:
    """Return the words of a corpus, which changed bits alone would not bring together again."""
    found = (re.findall(rb"[A-Za-z_.:-]{3,40}", path.read_bytes()) for path in corpus.iterdir())
    return sorted({word.decode() for words in found for word in words})


if __name__ == "__main__":
    # The memory limit is compared with the peak of the process. Exec does not reset that peak, so
    # it would be the peak of the test runner that started this; a child has a peak of its own.
    child = os.fork()
    if child == 0:
        main(sys.argv[1], int(sys.argv[2]))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
