"""The definitions in `crds/` are what the operator's types say."""

import pytest
from crds.generate import definitions


@pytest.mark.parametrize("path", definitions(), ids=lambda path: path.name)
def test_a_definition_is_what_make_crds_writes(path: object) -> None:
    (content,) = [text for definition, text in definitions().items() if definition == path]
    assert path.read_text() == content, "run: make crds"  # type: ignore[attr-defined]
