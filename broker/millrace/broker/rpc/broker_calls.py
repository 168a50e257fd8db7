"""Who may call the listener of brokers: brokers of this cluster, by their certificates (rule G2).

The handshake has shown that a certificate is of the right authority. Here its name must be that of
a broker of this cluster: an authority may sign for clients and for other clusters, too. A request
that names a broker must name the one that the certificate does (`check_name`, `check_id`). Without
certificates everybody is believed, and the network has to keep others away.
"""

from typing import Any

from millrace.broker.rpc.calls import Calls
from millrace.core.broker_names import BrokerName
from millrace.core.callers import Caller
from millrace.core.errors import (
    AuthenticationFailedError,
    BrokerIdNotRegisteredError,
    ClusterAuthorizationFailedError,
)
from millrace.core.ids import BrokerId
from millrace.core.metadata.image import MetadataImage
from millrace.runtime.transport.calls import Origin


class BrokerCalls(Calls):
    """The calls of the listener of brokers.

    Args:
        own: this broker's name in its certificate; None: brokers show none.
        has_plain: whether there are also connections in plain text, whose callers are believed.
        arguments, more: as for `Calls`.
    """

    def __init__(
        self, own: BrokerName | None, *arguments: Any, has_plain: bool = False, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._own = own
        self._has_plain = has_plain

    def _check_peer(self, call: Origin) -> None:
        if self._own is None or (self._has_plain and not call.principal):
            return
        name = BrokerName.parse(call.principal)
        if name is None or not name.is_of_cluster_of(self._own):
            raise AuthenticationFailedError(
                "only brokers of this cluster may call here: the certificate is not one of theirs"
            )


def check_name(caller: Caller, name: str) -> None:
    """Refuse a request for another broker than the one that sends it.

    Args:
        caller: of a call to the listener of brokers.
        name: of the broker that the request is for.

    Raises:
        ClusterAuthorizationFailedError: the certificate is another broker's.
    """
    proved = BrokerName.parse(caller.principal)
    if proved is not None and proved.broker != name:
        raise ClusterAuthorizationFailedError(
            f"the certificate is of broker {proved.broker!r}, and the request is for {name!r}"
        )


def check_id(caller: Caller, broker_id: BrokerId, image: MetadataImage | None) -> None:
    """Likewise, where a request has a broker's id.

    Raises:
        ClusterAuthorizationFailedError: the certificate is another broker's.
        BrokerIdNotRegisteredError: nobody knows whose id that is; yet, maybe.
    """
    if BrokerName.parse(caller.principal) is None:
        return
    broker = None if image is None else image.broker(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"no broker {broker_id} is known here")
    check_name(caller, broker.name)
