"""Describes the cluster's brokers, and takes them out of service."""

from millrace.client._admin.administration import Administration
from millrace.client._admin.descriptions import ClusterDescription, ConfigValue, config_from_wire
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import checked_broker
from millrace.core.errors import BrokerIdNotRegisteredError
from millrace.core.ids import BrokerId
from millrace.proto.v1 import cluster_pb2


class BrokerAdministration(Administration):
    """The part of `Admin` that is about brokers."""

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers, from the broker with the newest
        metadata.

        All brokers are asked. Those that do not answer within `metadata_timeout_ms` are in
        `unreachable`, unless the metadata has them fenced already.

            for broker in (await admin.describe_cluster()).brokers:
                print(broker.broker_id, broker.address, broker.rack, broker.state)
        """
        unreachable = await self._cluster.survey()
        known = self._cluster.metadata
        return ClusterDescription(
            self._cluster.cluster_id,
            known.controller_id,
            known.controller_epoch,
            tuple(known.brokers[broker] for broker in sorted(known.brokers)),
            unreachable,
            known.controller_problem,
        )

    async def drain_broker(self, broker_id: int) -> None:
        """Take a broker out of service: it hands over its leaderships, and gets no new replicas.

        It goes on replicating, and stays drained over restarts until `undrain_broker`. The answer
        comes when that is decided; the leaderships move at once where another replica is in sync,
        which `describe_topics` shows.

            await admin.drain_broker(2)

        Raises:
            BrokerIdNotRegisteredError: there is no such broker.
        """
        await self._drain(cluster_pb2.DrainBrokerRequest(broker_id=checked_broker(broker_id)))

    async def undrain_broker(self, broker_id: int) -> None:
        """Take a broker back into service; its leaderships return by themselves.

        Raises:
            BrokerIdNotRegisteredError: there is no such broker.
        """
        await self._drain(
            cluster_pb2.DrainBrokerRequest(broker_id=checked_broker(broker_id), undrain=True)
        )

    async def _drain(self, request: cluster_pb2.DrainBrokerRequest) -> None:
        await self._change(lambda c: c.cluster.DrainBroker(request), wire.raise_if_refused)

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove a broker that is gone for good from the cluster; its id is not given again.

            await admin.unregister_broker(2)

        Raises:
            BrokerIdNotRegisteredError: there is no such broker.
            BrokerInUseError: it is alive, or partitions have it as a replica; says which.
        """
        request = cluster_pb2.UnregisterBrokerRequest(broker_id=checked_broker(broker_id))
        known = await self._cluster.look_up(cluster_pb2.GetMetadataRequest(brokers_only=True))
        was_there = any(broker.broker_id == broker_id for broker in known.brokers)
        try:
            await self._change(lambda c: c.cluster.UnregisterBroker(request), wire.raise_if_refused)
        except BrokerIdNotRegisteredError:
            if not was_there:
                raise

    async def describe_broker_configs(self) -> dict[BrokerId, dict[str, ConfigValue]]:
        """Return the settings that each broker goes by, with where each value comes from.

        By full name, as `storage.trash_delay_ms`. Brokers that are fenced or do not answer are left
        out.

            for broker_id, config in (await admin.describe_broker_configs()).items():
                print(broker_id, config["limits.message_bytes_max"].value)
        """
        await self._cluster.look_up(cluster_pb2.GetMetadataRequest(brokers_only=True))
        request = cluster_pb2.DescribeBrokerConfigRequest()
        answers = await self._ask_brokers(lambda c: c.cluster.DescribeBrokerConfig(request))
        return {
            broker_id: config_from_wire(answer.config)
            for broker_id, answer in answers.items()
            if answer is not None
        }
