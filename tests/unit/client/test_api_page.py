"""The page about the Python API is what the docstrings say."""

from docs.api_page import api
from docs.generate import API

import millrace.client


def test_the_page_is_what_the_docstrings_say() -> None:
    assert API.read_text(encoding="utf-8") == api(), "Run: make docs"


def test_the_page_tells_of_everything_that_is_exported() -> None:
    page = api()
    for name in millrace.client.__all__:
        assert f"### {name}\n" in page or f"| `{name}` |" in page


def test_defaults_are_values_and_methods_of_a_base_are_there() -> None:
    page = api()
    assert "batch_size: Bytes = 1000000," in page
    assert "#### SyncProducer.send_batch" in page
    assert "- `topic_wait_ms`: How long" in page
