from millrace.proto.v1 import fetch_pb2 as _fetch_pb2
from millrace.proto.v1 import transactions_pb2 as _transactions_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
