"""References of images: `[registry[:port]/]repository[:tag][@digest]`."""

from typing import Final

_LATEST: Final = "latest"
"""The tag of a reference that names none."""


def with_version(image: str, version: str) -> str:
    """Return the image of the same repository that has this tag."""
    return f"{_split(image)[0]}:{version}"


def version_of(image: str) -> str:
    """Return the tag, or the digest if the reference has one: a node runs that."""
    _, tag, digest = _split(image)
    return digest or tag


def _split(image: str) -> tuple[str, str, str]:
    named, _, digest = image.partition("@")
    folder, slash, last = named.rpartition("/")  # A colon before the last slash is of a port.
    name, _, tag = last.partition(":")
    return f"{folder}{slash}{name}", tag or _LATEST, digest
