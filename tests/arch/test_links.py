"""Links between the documents lead somewhere."""

import re
from pathlib import Path

import pytest
from tests.arch.repository import ROOT, files

DOCUMENTS = [path for path in files() if path.suffix == ".md"]

CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the headings of a document as links name them, as GitHub does."""
    headings = HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(path: Path, text: str) -> list[str]:
    """Return the links of a document that lead nowhere; those that leave the project are not tried.

    Args:
        path: of the document, from the project's root.
        text: its content.
    """
    lost = []
    for link in LINK.findall(CODE.sub("", text)):
        name, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        target = ROOT / path.parent / name
        is_there = not name or target.exists()
        if is_there and anchor:
            linked = text if not name else target.read_text() if target.is_file() else ""
            is_there = anchor in anchors(linked)
        if not is_there:
            lost.append(link)
    return lost


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("clusters.md", False),
        ("../README.md", False),
        ("bench/", False),
        ("#is-it-here", False),
        ("clusters.md#elections", False),
        ("https://example.org/nowhere", False),
        ("nowhere.md", True),
        ("CONTRIBUTING.md", True),
        ("#is-it-there", True),
        ("clusters.md#nobody-leads", True),
        ("bench/#figures", True),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, is_broken: bool) -> None:
    text = f"# Is it here?\n\nSee [there]({link}), not `[code](nowhere)`.\n"
    assert broken(Path("docs/x.md"), text) == ([link] if is_broken else [])
