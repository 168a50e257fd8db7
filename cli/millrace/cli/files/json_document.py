"""A JSON document of a user. Everything that can be wrong with it becomes one message."""

import json
from typing import Any

from millrace.cli.console.failures import Failure
from millrace.core.json_objects import unique_members

TOO_DEEP = "JSON that is nested too deeply to be read"


def parse_document(data: bytes, name: str, hint: str) -> Any:
    """Return what a document says.

    Args:
        name: of the file, for the message.
        hint: what to do if it is no JSON.

    Raises:
        Failure: it is no JSON, or too deep, or an object has a name twice.
    """
    try:
        return json.loads(data, object_pairs_hook=unique_members)
    except RecursionError as error:
        raise Failure(f"{name}: {TOO_DEEP}", hint) from error
    except ValueError as error:  # Also of bytes that are no text, and of very long numbers.
        raise Failure(f"{name} is no JSON: {error}", hint) from error
