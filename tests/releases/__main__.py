"""`make release`: keeps of this checkout what the tests of later ones need of the last release.

That is its wire and the names of its settings, which later releases must not break; its code, whose
brokers run beside later ones; and a data directory, which later ones read.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

from tests.arch import settings, wire
from tests.releases import directory, last


def main() -> None:
    """Keep it; the argument is the wheel of the release."""
    wheel = Path(sys.argv[1])
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as code:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(code)
        last.keep_code(version, Path(code))
    wire.keep_for_the_next_release()
    settings.keep_for_the_next_release()
    directory.keep(version)


if __name__ == "__main__":
    main()
