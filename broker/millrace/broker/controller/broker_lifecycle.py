"""This broker's heartbeats to the controller, from the registration to the end.

They report the broker's state, and answer the controller's questions. While the broker is fenced it
may not lead (P28), and it stops once the cluster can do without it (P32).

Source: Kafka's BrokerLifecycleManager (KIP-631).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from millrace.broker import events
from millrace.broker.controller.channel import ControllerChannel
from millrace.broker.quotas import Quotas
from millrace.core.errors import MillraceError, NotControllerError, StaleBrokerEpochError
from millrace.core.ids import TopicPartition
from millrace.core.media import Media
from millrace.core.metadata.model import BrokerLife, KafkaAddresses, Reluctance, SideAddresses
from millrace.core.metadata.requests import Heartbeat, HeartbeatAnswer, LogEnd

_log = logging.getLogger(__name__)

_UNFENCED_PAUSE_SECONDS: Final = 0.02
"""Pause between heartbeats of a registered broker that may not lead yet."""
_LEAVING_PAUSE_SECONDS: Final = 0.05
"""Pause between heartbeats of a broker that wants to stop."""


class BrokerLifecycle:
    """Sends the heartbeats of one life.

    Args:
        channel: to the controller.
        life: that the broker has registered.
        log_ends: returns the ends of logs that the controller asks for.
        offline: returns the replicas that the cluster should do without.
        reluctance: returns why the broker is reluctant to lead.
        media: returns the media of its working log directories.
        outside_address: returns where clients of the outside listener connect.
        drpc_addresses: returns where callers connect by DRPC.
        tls_addresses: likewise, by TLS and gRPC.
        kafka_addresses: likewise, of clients of Kafka.
        quotas: of its clients.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        life: BrokerLife,
        *,
        log_ends: Callable[[Iterable[TopicPartition]], Sequence[LogEnd]],
        offline: Callable[[], Sequence[TopicPartition]],
        reluctance: Callable[[], Reluctance],
        media: Callable[[], tuple[Media, ...]],
        outside_address: Callable[[], str],
        drpc_addresses: Callable[[], SideAddresses],
        tls_addresses: Callable[[], SideAddresses],
        kafka_addresses: Callable[[], KafkaAddresses],
        quotas: Quotas,
    ) -> None:
        self._channel = channel
        self._life = life
        self._log_ends = log_ends
        self._offline = offline
        self._reluctance = reluctance
        self._media = media
        self._outside_address = outside_address
        self._drpc_addresses = drpc_addresses
        self._tls_addresses = tls_addresses
        self._kafka_addresses = kafka_addresses
        self._quotas = quotas

    async def heartbeat(self, *, wants_shutdown: bool = False) -> HeartbeatAnswer:
        """Send a heartbeat, with the log ends that the controller asked for.

        Raises:
            StaleBrokerEpochError: another process has this broker's name.
            NotControllerError: no controller got it.
        """
        channel = self._channel
        request = Heartbeat(
            life=self._life,
            metadata_epoch=channel.metadata.epoch,
            wants_shutdown=wants_shutdown,
            log_ends=self._log_ends(channel.take_asked_log_ends()),
            offline=self._offline()[: channel.config.request_partitions_max],
            reluctance=self._reluctance(),
            media=self._media(),
            outside_address=self._outside_address(),
            drpc_addresses=self._drpc_addresses(),
            tls_addresses=self._tls_addresses(),
            kafka_addresses=self._kafka_addresses(),
            quota_uses=self._quotas.uses(),
        )
        answer: HeartbeatAnswer = await channel.request(request)
        self._quotas.on_shares(answer.quota_shares)
        return answer

    async def until_unfenced(self) -> None:
        """Send heartbeats until the controller lets this broker lead (P28).

        Raises:
            StaleBrokerEpochError: another process has this broker's name.
        """
        while True:
            try:
                if not (await self.heartbeat()).is_fenced:
                    return
            except NotControllerError:
                pass  # The next heartbeat repeats it.
            await asyncio.sleep(_UNFENCED_PAUSE_SECONDS)

    async def run(self) -> None:
        """Send heartbeats for as long as the broker runs, one as soon as there is a new session.

        Raises:
            StaleBrokerEpochError: another process has this broker's name: this one must stop.
        """
        channel = self._channel
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(channel.config.broker_heartbeat_interval_ms / 1000):
                    await channel.heartbeat_due()
            try:
                await self.heartbeat()
            except StaleBrokerEpochError:
                raise
            except MillraceError as error:
                events.HEARTBEAT_FAILED.log(_log, error=error.message)

    async def leave(self) -> None:
        """Let the cluster replace this broker; return once it may stop (P32).

        The controller bounds the time; without a controller it returns at once.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._channel.config.controlled_shutdown_wait_ms / 1000):
                while True:
                    try:
                        if (await self.heartbeat(wants_shutdown=True)).may_stop:
                            return
                    except NotControllerError:
                        pass  # The next heartbeat repeats it.
                    except MillraceError as error:
                        events.SHUTDOWN_UNANNOUNCED.log(_log, error=error.message)
                        return
                    await asyncio.sleep(_LEAVING_PAUSE_SECONDS)
