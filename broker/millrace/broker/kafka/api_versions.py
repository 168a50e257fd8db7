"""ApiVersions: what a client may ask for, in which versions.

It is the first request of every client. Strangers are answered, too. A client may know a later
version of it than this broker; it is answered in the first one, which all clients read, with the
versions of ApiVersions alone (KIP-511).

Produce is listed from version 0 and served from 3: librdkafka compresses with a codec only where a
broker lists the version that it came with (KAFKA-18659, K5). No client takes an older version than
the newest that both know.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from kafka.protocol.metadata import ApiVersionsResponse

from millrace.broker.kafka.requests import ApiKey, Request, RequestTable, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code

_VERSIONS: Final = range(5)
_SOFTWARE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.\-]{0,60}[A-Za-z0-9])?")
"""What a client may call its library, and its version (KIP-511)."""
_FIRST_WITH_SOFTWARE: Final = 3


class ApiVersionsRequests:
    """Answers ApiVersions.

    Attributes:
        table: all that is served.
    """

    table: RequestTable

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {ApiKey.API_VERSIONS: Served(_VERSIONS, self._answer, is_for_strangers=True)}

    async def _answer(self, request: Request) -> Any:
        message, version = request.message, request.version
        if version >= _FIRST_WITH_SOFTWARE:
            said = (message.client_software_name, message.client_software_version)
            if not all(map(_SOFTWARE.fullmatch, said)):
                # In the first version: clients take an error for one, whatever they asked with.
                return ApiVersionsResponse(version=0, error_code=Code.INVALID_REQUEST, api_keys=[])
            request.connection.software = "/".join(said)
        return ApiVersionsResponse(
            version=version,
            error_code=NO_ERROR,
            api_keys=[_entry(key, versions) for key, versions in self.table.listed()],
        )


def unknown_version() -> Any:
    """Return the answer to ApiVersions of a version that is not known here."""
    return ApiVersionsResponse(
        version=0,
        error_code=Code.UNSUPPORTED_VERSION,
        api_keys=[_entry(ApiKey.API_VERSIONS, _VERSIONS)],
    )


def _entry(key: int, versions: range) -> Any:
    return ApiVersionsResponse.ApiVersion(
        api_key=key, min_version=versions[0], max_version=versions[-1]
    )
