"""The caller of a broker: the audit log and quotas use it.

A broker makes one `Caller` for each call, and a stream of requests is one call. A request that a
broker passes on to the controller carries the `Caller` of the client. Only the principal is proved,
by the connection's credentials; a client may send any client id.

Sources: Kafka's RequestContext; KIP-511 for the software, KIP-590 for forwarded requests.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

ANONYMOUS: Final = "anonymous"
"""The principal of a connection that proves nothing."""
CLIENT_ID_CHARACTERS_MAX: Final = 255
CALLER_FIELDS: Final = ("principal", "client_id", "address", "listener", "software")
"""The fields of a log line that names a caller."""
_CLIENT_ID: Final = re.compile(rf"[!-~]{{1,{CLIENT_ID_CHARACTERS_MAX}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The identity of a caller, as the broker knows it that was called.

    Attributes:
        principal: the proved identity, or `anonymous`.
        client_id: the name that the client gives itself; empty: none.
        address: `host:port` from which it is connected.
        listener: name of the listener that it is connected to.
        software: its library and version, as it says; empty: it does not say.
    """

    principal: str
    client_id: str
    address: str
    listener: str
    software: str

    @property
    def owner(self) -> tuple[bool, str]:
        """Return as whom it counts where each may have a share.

        A client id proves nothing. A caller without a principal counts as its host.
        """
        is_known = self.principal != ANONYMOUS
        return is_known, self.principal if is_known else self.address.rpartition(":")[0]

    def log_fields(self) -> Mapping[str, Any]:
        """Return the fields of a log line that names the caller."""
        return {field: getattr(self, field) for field in CALLER_FIELDS}


def client_id_problem(client_id: str) -> str:
    """Return what is wrong with a client id; empty: nothing is."""
    if _CLIENT_ID.fullmatch(client_id):
        return ""
    return (
        f"client_id={client_id[:40]!r}: it must be 1 to {CLIENT_ID_CHARACTERS_MAX} visible ASCII "
        "characters, without spaces"
    )
