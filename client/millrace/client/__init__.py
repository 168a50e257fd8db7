"""The client library: write, read and administer a Millrace cluster.

    from millrace.client import SyncConsumer, SyncProducer

    with SyncProducer("localhost:7092") as producer:
        producer.send("orders", b"a record", key=b"alice")

    with SyncConsumer("localhost:7092") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.key, record.value)

`Producer`, `Consumer` and `Admin` are the same for event loops. All errors are `MillraceError`s;
their `appended` tells whether a failed write may be in the log.
"""

from millrace.client._admin import (
    Admin,
    ClusterDescription,
    ConfigValue,
    LogDescription,
    PartitionDescription,
    TopicDescription,
)
from millrace.client._consumer import Consumer
from millrace.client._handles import (
    AppendedRange,
    BatchHandle,
    BatchMetadata,
    RecordHandle,
    RecordMetadata,
)
from millrace.client._offsets import OffsetAndTimestamp
from millrace.client._producer import Producer
from millrace.client._records import FetchedRecords, Record, Records
from millrace.client._sync import SyncAdmin, SyncConsumer, SyncProducer
from millrace.client._wire import BrokerInfo
from millrace.core.errors import (
    Appended,
    BrokerBusyError,
    BufferExhaustedError,
    ClosedError,
    ConcurrentUseError,
    ConnectionFailedError,
    CorruptBatchError,
    DeliveryTimedOutError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTimestampError,
    InvalidTopicError,
    LogTruncatedError,
    MessageTooLargeError,
    MillraceError,
    OffsetOutOfRangeError,
    RetriableError,
    SerializationError,
    StorageFullError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

__all__ = [
    "Admin",
    "Appended",
    "AppendedRange",
    "BatchHandle",
    "BatchMetadata",
    "BrokerBusyError",
    "BrokerInfo",
    "BufferExhaustedError",
    "ClosedError",
    "ClusterDescription",
    "ConcurrentUseError",
    "ConfigValue",
    "ConnectionFailedError",
    "Consumer",
    "CorruptBatchError",
    "DeliveryTimedOutError",
    "FetchedRecords",
    "InvalidConfigError",
    "InvalidPartitionsError",
    "InvalidRecordError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "LogDescription",
    "LogTruncatedError",
    "MessageTooLargeError",
    "MillraceError",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "PartitionDescription",
    "Producer",
    "Record",
    "RecordHandle",
    "RecordMetadata",
    "Records",
    "RetriableError",
    "SerializationError",
    "StorageFullError",
    "SyncAdmin",
    "SyncConsumer",
    "SyncProducer",
    "TopicAlreadyExistsError",
    "TopicDescription",
    "UnknownTopicOrPartitionError",
]
