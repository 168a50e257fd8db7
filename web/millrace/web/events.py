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
CLUSTERS_NOT_LISTED: Final = Event(
    name="clusters_not_listed",
    level=Level.WARNING,
    text="the Clusters cannot be listed",
    meaning="The Kubernetes API server did not answer, or refused; the pages show the Clusters "
    "that were known before, and ask again after some seconds.",
    action="Look whether the API server is well, and whether the page's account may list Clusters.",
    fields=("reason",),
)
