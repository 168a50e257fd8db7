"""Writes the definitions of the public resources from their types: `make crds`.

A test fails when what is checked in is not what this would write.
"""

import json
from pathlib import Path
from typing import Any, Final

import yaml

from millrace.operator.model.definitions import (
    cluster_definition,
    quota_definition,
    topic_definition,
)

FOLDER: Final = Path(__file__).parent


def definitions() -> dict[Path, str]:
    """Return the files with their content."""
    return {
        FOLDER / "clusters.millrace.dev.yaml": _text(cluster_definition()),
        FOLDER / "quotas.millrace.dev.yaml": _text(quota_definition()),
        FOLDER / "topics.millrace.dev.yaml": _text(topic_definition()),
    }


def main() -> None:
    """Write the files."""
    for path, content in definitions().items():
        path.write_text(content, encoding="utf-8")


def _text(document: dict[str, Any]) -> str:
    plain = json.loads(
        json.dumps(document)
    )  # Names as texts, and nothing that YAML would refer to.
    return "# Made from the code by `make crds`.\n" + yaml.safe_dump(plain, sort_keys=False)


if __name__ == "__main__":
    main()
