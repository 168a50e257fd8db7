"""The events that the web page's server logs. `millrace.core.events` has the idea."""

from typing import Final

from millrace.core.events import Event, Level

PAGE_FAILED: Final = Event(
    name="page_failed",
    level=Level.ERROR,
    text="a page failed",
    meaning="A bug: the reader was told that the page has failed, and other pages are served.",
    action="Report it, with the trace.",
    fields=("path",),
)
