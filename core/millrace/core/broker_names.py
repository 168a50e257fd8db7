"""How a broker's certificate names it: by a SPIFFE id with its cluster and its name.

Brokers believe each other by these names. A broker registers, fetches as a replica and writes
markers as the broker that its certificate names. Nobody else's certificate counts among brokers,
also where one authority signs for all (rule G2).
"""

import re
from typing import Final, NamedTuple, Self

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}", re.ASCII)  # As SPIFFE's trust domains.
_URI: Final = re.compile(
    r"spiffe://([A-Za-z0-9._-]+)/ns/([A-Za-z0-9._-]+)/cluster/([A-Za-z0-9._-]+)"
    r"/broker/([A-Za-z0-9._-]+)",
    re.ASCII,
)


class BrokerName(NamedTuple):
    """Which broker of which cluster it is.

    Attributes:
        trust_domain: of all that is signed together.
        namespace: of the cluster.
        cluster: its name.
        broker: the broker's `node.name`.
    """

    trust_domain: str
    namespace: str
    cluster: str
    broker: str

    @property
    def uri(self) -> str:
        """Return it as a certificate has it.

        Raises:
            ValueError: a part cannot be in it.
        """
        for part in self:
            if not _NAME.fullmatch(part):
                raise ValueError(
                    f"{part!r} cannot be in a certificate's name: it has letters, digits, -, _ "
                    "and ."
                )
        return (
            f"spiffe://{self.trust_domain}/ns/{self.namespace}/cluster/{self.cluster}"
            f"/broker/{self.broker}"
        )

    @classmethod
    def parse(cls, uri: str) -> Self | None:
        """Return whom a SPIFFE id names; None: no broker."""
        found = _URI.fullmatch(uri)
        return None if found is None else cls(*found.groups())

    def is_of_cluster_of(self, other: "BrokerName") -> bool:
        """Whether both are of the same cluster."""
        return self[:-1] == other[:-1]
