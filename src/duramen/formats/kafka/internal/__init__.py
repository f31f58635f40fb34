"""Kafka's internal topics.

- `decode_record` decodes one record of them by the schemas in `records`; `message` has Kafka's encoding.
- `GroupTable` adds the records of ``__consumer_offsets`` up to groups and committed offsets.
"""

from __future__ import annotations

from duramen.formats.kafka.internal.groups import CommittedOffset, GroupTable, KafkaGroup
from duramen.formats.kafka.internal.records import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    InternalRecord,
    decode_record,
)
