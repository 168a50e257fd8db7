"""Text from strangers stays text, and what is not seen is made visible."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.web.markup import address, begin, document, element, joined, visible

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</td></table><iframe>",
    "&lt;script&gt;",
    "<!-- -->",
    "]]>",
]


class Read(HTMLParser):
    """What a browser would make of a page: tags with attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_no_tag_and_no_attribute(text: str) -> None:
    read = Read(element("td", text, title=text))
    assert read.tags == ["td"]
    assert read.attributes == [("title", text)]
    assert read.text == text


@given(st.text())
def test_any_text_is_read_as_it_is_made_visible(text: str) -> None:
    page = element("td", text, title=text)
    read = Read(page)
    assert set(read.tags) <= {"td", "span"}
    assert read.text.replace("\r", "\n") == visible(text)
    assert read.attributes[0] == ("title", visible(text))
    page.encode()  # No half of a pair is left.


@pytest.mark.parametrize(
    ("character", "mark"),
    [
        ("\x1b", "\\x1b"),
        ("\x00", "\\x00"),
        ("\x9b", "\\x9b"),
        ("\r", "\\x0d"),
        ("\u202e", "\\u{202e}"),
        ("\u2066", "\\u{2066}"),
        ("\u200b", "\\u{200b}"),
        ("\ufeff", "\\u{feff}"),
        ("\ud800", "\\u{d800}"),
        ("\U000e0041", "\\u{e0041}"),
    ],
)
def test_a_character_that_is_not_seen_has_a_mark(character: str, mark: str) -> None:
    assert visible(f"a{character}b") == f"a{mark}b"
    assert element("td", character) == f'<td><span class="mark">{mark}</span></td>'


def test_what_people_write_stays_as_it_is() -> None:
    text = "Zürich 東京 עברית عربى 🛫 a\tb\nc"
    assert visible(text) == text


@given(st.text(st.sampled_from('ab"&<\x1b\u202e\U000e0041🛫')), st.integers(0, 200))
def test_the_begin_of_a_text_is_the_longest_that_fits_when_it_is_written(
    text: str, written_max: int
) -> None:
    found = begin(text, written_max)
    assert text.startswith(found)
    assert len(joined(found)) <= written_max
    if found != text:
        assert len(joined(text[: len(found) + 1])) > written_max


def test_elements_hold_elements_texts_and_figures() -> None:
    row = element("p", "a", [element("b", 1_234), None], class_="x", hidden=True, id=None)
    assert row == '<p class="x" hidden>a<b>1,234</b></p>'
    assert joined("<", element("i")) == "&lt;<i></i>"
    assert element("meta", http_equiv="refresh", content=5) == (
        '<meta http-equiv="refresh" content="5">'
    )


def test_an_address_stays_on_this_site_whatever_its_values_are() -> None:
    assert address("/topic", name="a&b=c #/?é", first=None) == (
        "/topic?name=a%26b%3Dc+%23%2F%3F%C3%A9"
    )
    assert address("/topic", name="\ud800") == "/topic?name=%3F"
    with pytest.raises(AssertionError):
        address("javascript:alert(1)")


def test_a_document_says_what_it_is() -> None:
    page = document(element("title", "x"), element("body", "y"))
    assert page.startswith(b'<!DOCTYPE html>\n<html lang="en"><head><title>x</title></head>')
