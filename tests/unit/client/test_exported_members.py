"""What the library offers is a decision, not an accident."""

from importlib.metadata import version

import millrace.client
from millrace.core import errors


def test_all_is_sorted_and_complete() -> None:
    for name in millrace.client.__all__:  # Some are there once they are named.
        getattr(millrace.client, name)
    public = [
        name
        for name, member in vars(millrace.client).items()
        if not name.startswith("_")
        and getattr(member, "__module__", "").startswith("millrace.")
        and name not in ("serialization",)
    ]
    assert millrace.client.__all__ == sorted(public)


def test_every_error_of_the_library_itself_is_exported() -> None:
    classes = [member for member in vars(errors).values() if isinstance(member, type)]
    own = [error for error in classes if errors.ClientError in error.__bases__]
    assert own
    for error in own:
        assert getattr(millrace.client, error.__name__) is error


def test_every_export_has_a_docstring() -> None:
    for name in millrace.client.__all__:
        assert getattr(millrace.client, name).__doc__, name


def test_the_version_is_that_of_what_is_installed() -> None:
    assert millrace.client.__version__ == version("millrace")
