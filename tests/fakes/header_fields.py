"""Where each field of a record batch's header stands, and its type in `struct`."""

FIELDS = {
    "magic": (0, "<4s"),
    "stored_length": (4, "<I"),
    "inflated_length": (8, "<I"),
    "record_count": (12, "<I"),
    "last_offset_delta": (16, "<I"),
    "attributes": (20, "<H"),
    "producer_epoch": (22, "<h"),
    "producer_id": (24, "<q"),
    "base_sequence": (32, "<i"),
    "reserved": (36, "<I"),
    "base_timestamp": (40, "<q"),
    "max_timestamp": (48, "<q"),
    "delete_horizon": (56, "<q"),
    "producer_crc": (64, "<I"),
    "leader_epoch": (68, "<i"),
    "base_offset": (72, "<q"),
    "append_timestamp": (80, "<q"),
    "broker_attributes": (88, "<H"),
    "broker_reserved": (90, "<H"),
    "broker_crc": (92, "<I"),
}
