"""The records of Kafka's internal topics: ``__consumer_offsets``, ``__transaction_state``, ``__cluster_metadata``.

::

    __consumer_offsets    key: i16, which says what the record is, and a message; value: version i16 and a message
    __transaction_state   the same
    __cluster_metadata    no key; value: frame (1), type and version as unsigned varints, and a message

A type or version that is not declared here is named, and its bytes are left alone. Credentials and tokens are not
decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from duramen.errors import CorruptionError
from duramen.formats.kafka.internal.message import (
    MessageField,
    MessageReader,
    MessageSchema,
    UnknownMessageVersionError,
    decode_message,
)

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
CLUSTER_METADATA = "__cluster_metadata"
INTERNAL_TOPICS = (CONSUMER_OFFSETS, TRANSACTION_STATE, CLUSTER_METADATA)

_FRAME = 1
_F = MessageField

_MEMBER = (
    _F("member_id", "string"), _F("group_instance_id", "string", 3), _F("client_id", "string"),
    _F("client_host", "string"), _F("rebalance_timeout", "int32", 1), _F("session_timeout", "int32"),
    _F("subscription", "bytes"), _F("assignment", "bytes"),
)  # fmt: skip
OFFSET_COMMIT_VALUE = MessageSchema(
    "OffsetCommitValue",
    (
        _F("offset", "int64"), _F("leader_epoch", "int32", 3), _F("metadata", "string"),
        _F("commit_timestamp", "int64"), _F("expire_timestamp", "int64", 1, 1), _F("topic_id", "uuid", 4, tag=0),
    ),
    last_version=4, first_flexible=4,
)  # fmt: skip
GROUP_METADATA_VALUE = MessageSchema(
    "GroupMetadataValue",
    (
        _F("protocol_type", "string"), _F("generation", "int32"), _F("protocol", "string"), _F("leader", "string"),
        _F("current_state_timestamp", "int64", 2), _F("members", _MEMBER, is_array=True),
    ),
    last_version=4, first_flexible=4,
)  # fmt: skip
_GROUP = (_F("group", "string"),)
_GROUP_MEMBER = (*_GROUP, _F("member_id", "string"))


class MessageKind(NamedTuple):
    """What a record with some key is. ``value`` is None where only the key is decoded."""

    name: str
    key: MessageSchema
    value: MessageSchema | None = None


def _kind(name: str, number: int, key: tuple[MessageField, ...], value: MessageSchema | None = None) -> MessageKind:
    return MessageKind(name, MessageSchema(f"{name}Key", key, number, first_version=number), value)


_OFFSET_KEY = (*_GROUP, _F("topic", "string"), _F("partition", "int32"))
_EPOCH_VALUE = MessageSchema("ConsumerGroupMetadataValue", (_F("epoch", "int32"),), first_flexible=0)
OFFSET_COMMIT, GROUP_METADATA, CONSUMER_GROUP = "OffsetCommit", "GroupMetadata", "ConsumerGroupMetadata"
_OF_GROUPS: Mapping[int, MessageKind] = {
    0: _kind(OFFSET_COMMIT, 0, _OFFSET_KEY, OFFSET_COMMIT_VALUE),
    1: _kind(OFFSET_COMMIT, 1, _OFFSET_KEY, OFFSET_COMMIT_VALUE),
    2: _kind(GROUP_METADATA, 2, _GROUP, GROUP_METADATA_VALUE),
    3: _kind(CONSUMER_GROUP, 3, _GROUP, _EPOCH_VALUE),
    4: _kind("ConsumerGroupPartitionMetadata", 4, _GROUP),
    5: _kind("ConsumerGroupMemberMetadata", 5, _GROUP_MEMBER),
    6: _kind("ConsumerGroupTargetAssignmentMetadata", 6, _GROUP),
    7: _kind("ConsumerGroupTargetAssignmentMember", 7, _GROUP_MEMBER),
    8: _kind("ConsumerGroupCurrentMemberAssignment", 8, _GROUP_MEMBER),
}

_TRANSACTION_VALUE = MessageSchema(
    "TransactionLogValue",
    (
        _F("producer_id", "int64"), _F("previous_producer_id", "int64", 1, tag=0),
        _F("next_producer_id", "int64", 1, tag=1), _F("producer_epoch", "int16"), _F("timeout_ms", "int32"),
        _F("status", "int8"),
        _F("partitions", (_F("topic", "string"), _F("partition_ids", "int32", is_array=True)), is_array=True),
        _F("last_update_ms", "int64"), _F("start_ms", "int64"), _F("client_version", "int16", 1, tag=2),
    ),
    last_version=1, first_flexible=1,
)  # fmt: skip
_OF_TRANSACTIONS = {0: _kind("TransactionLog", 0, (_F("transactional_id", "string"),), _TRANSACTION_VALUE)}


def _metadata(name: str, *fields: MessageField, last_version: int = 0) -> MessageSchema:
    return MessageSchema(name, fields, last_version, first_flexible=0)


def _brokers(name: str, since: int = 0, tag: int | None = None) -> MessageField:
    return MessageField(name, "int32", since, tag=tag, is_array=True)


_ENDPOINT = (_F("name", "string"), _F("host", "string"), _F("port", "uint16"), _F("security_protocol", "int16"))
_FEATURE = (_F("name", "string"), _F("min_supported_version", "int16"), _F("max_supported_version", "int16"))
_METADATA: Mapping[int, MessageSchema] = {
    0: _metadata(
        "RegisterBroker", _F("broker_id", "int32"), _F("is_migrating_zk_broker", "bool", 2),
        _F("incarnation_id", "uuid"), _F("broker_epoch", "int64"), _F("end_points", _ENDPOINT, is_array=True),
        _F("features", _FEATURE, is_array=True), _F("rack", "string"), _F("fenced", "bool"),
        _F("in_controlled_shutdown", "bool", 1), _F("log_dirs", "uuid", 3, tag=0, is_array=True), last_version=3,
    ),
    1: _metadata("UnregisterBroker", _F("broker_id", "int32"), _F("broker_epoch", "int64")),
    2: _metadata("Topic", _F("name", "string"), _F("topic_id", "uuid")),
    3: _metadata(
        "Partition", _F("partition_id", "int32"), _F("topic_id", "uuid"), _brokers("replicas"),
        _brokers("isr"), _brokers("removing_replicas"), _brokers("adding_replicas"),
        _F("leader", "int32"), _F("leader_recovery_state", "int8", tag=0), _F("leader_epoch", "int32"),
        _F("partition_epoch", "int32"), _F("directories", "uuid", 1, is_array=True),
        _brokers("eligible_leader_replicas", 2, 1),
        _brokers("last_known_elr", 2, 2), last_version=2,
    ),
    4: _metadata(
        "Config", _F("resource_type", "int8"), _F("resource_name", "string"), _F("name", "string"),
        _F("value", "string"),
    ),
    5: _metadata(
        "PartitionChange", _F("partition_id", "int32"), _F("topic_id", "uuid"), _brokers("isr", tag=0),
        _F("leader", "int32", tag=1), _brokers("replicas", tag=2),
        _brokers("removing_replicas", tag=3), _brokers("adding_replicas", tag=4),
        _F("leader_recovery_state", "int8", tag=5), _F("directories", "uuid", 1, tag=8, is_array=True),
        _brokers("eligible_leader_replicas", 2, 6), _brokers("last_known_elr", 2, 7),
        last_version=2,
    ),
    7: _metadata("FenceBroker", _F("id", "int32"), _F("epoch", "int64")),
    8: _metadata("UnfenceBroker", _F("id", "int32"), _F("epoch", "int64")),
    9: _metadata("RemoveTopic", _F("topic_id", "uuid")),
    12: _metadata("FeatureLevel", _F("name", "string"), _F("feature_level", "int16")),
    15: _metadata(
        "ProducerIds", _F("broker_id", "int32"), _F("broker_epoch", "int64"), _F("next_producer_id", "int64"),
    ),
    17: _metadata(
        "BrokerRegistrationChange", _F("broker_id", "int32"), _F("broker_epoch", "int64"), _F("fenced", "int8", tag=0),
        _F("in_controlled_shutdown", "int8", 1, tag=1), _F("log_dirs", "uuid", 2, tag=2, is_array=True), last_version=2,
    ),
    20: _metadata("NoOp"),
    23: _metadata("BeginTransaction", _F("name", "string", tag=0)),
    24: _metadata("EndTransaction"),
    25: _metadata("AbortTransaction", _F("reason", "string", tag=0)),
    27: _metadata(
        "RegisterController", _F("controller_id", "int32"), _F("incarnation_id", "uuid"),
        _F("zk_migration_ready", "bool"), _F("end_points", _ENDPOINT, is_array=True),
        _F("features", _FEATURE, is_array=True),
    ),
}  # fmt: skip


class InternalRecord(NamedTuple):
    """A record of an internal topic. ``kind`` names what it is; ``note`` says why a part is not decoded."""

    kind: str
    version: int | None = None
    """Version of the value."""
    key: Mapping[str, Any] = {}
    value: Mapping[str, Any] | None = {}
    """None for a tombstone."""
    note: str = ""


def decode_record(topic: str, key: bytes | None, value: bytes | None) -> InternalRecord:
    """A record of the internal topic with that name. Raises `CorruptionError` for bytes that are not such a record."""
    if topic == CLUSTER_METADATA:
        return _metadata_record(value)
    kinds = _OF_GROUPS if topic == CONSUMER_OFFSETS else _OF_TRANSACTIONS
    if key is None:
        raise CorruptionError(f"a record of {topic} has no key")
    number = MessageReader(key).integer(2)
    kind = kinds.get(number)
    if kind is None:
        return InternalRecord(f"type {number}", note=f"the key has the unknown type {number}")
    of_key = decode_message(kind.key, number, key[2:])
    if value is None:
        return InternalRecord(kind.name, None, of_key, None)
    version = MessageReader(value).integer(2)
    if kind.value is None:
        return InternalRecord(kind.name, version, of_key)
    try:
        return InternalRecord(kind.name, version, of_key, decode_message(kind.value, version, value[2:]))
    except UnknownMessageVersionError as error:
        return InternalRecord(kind.name, version, of_key, note=str(error))


def _metadata_record(value: bytes | None) -> InternalRecord:
    if value is None:
        raise CorruptionError(f"a record of {CLUSTER_METADATA} has no value")
    reader = MessageReader(value)
    frame = reader.varint()
    if frame != _FRAME:
        return InternalRecord(f"frame {frame}", note=f"the frame has the unknown version {frame}")
    number, version = reader.varint(), reader.varint()
    schema = _METADATA.get(number)
    if schema is None:
        return InternalRecord(f"type {number}", version, note="records of this type are not decoded")
    try:
        found = decode_message(schema, version, value[reader.position :])
    except UnknownMessageVersionError as error:
        return InternalRecord(schema.name, version, note=str(error))
    return InternalRecord(schema.name, version, value=found)
