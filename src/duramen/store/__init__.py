"""Topics with partitions: many logs below one directory, in RustLog's layout.

- `Store` creates, lists, describes and deletes topics, and opens them.
- `Topic` appends each record to the partition of its key, and reads one partition or all.
- `TopicGroup` is a consumer group over all partitions.
- The directory of a Kafka broker is a store for reading; `Store.groups` are the groups that it knows.

``store.topic(name)`` returns a `Topic`. It gets the logs of its partitions from `Partitions`, which keeps them open in
a `Pool`. Helpers: `names` (valid names), `layout` (paths), `settings` (``topic.json``), `partitioner`.

Order exists within a partition only. The package does not assign partitions to consumers, replicate, or read the bytes
of a log.
"""

from __future__ import annotations

from duramen.store.address import TopicAddress, log_options, log_path, parse_address, topic_address
from duramen.store.broker import CHECKPOINTS, options_at
from duramen.store.consumers import TopicDelivery, TopicGroup
from duramen.store.discovery import FoundLog, addressed_logs, find_logs
from duramen.store.kafka_groups import GroupLag, GroupsByRoot, KafkaGroups
from duramen.store.layout import (
    PARTITIONS,
    TOPICS,
    check_topic_exists,
    is_store,
    list_partitions,
    list_topics,
    partition_path,
    settings_path,
    topic_path,
)
from duramen.store.names import Address, check_topic
from duramen.store.partitioner import Sticky, assign
from duramen.store.settings import read_settings
from duramen.store.store import PartitionInfo, Store, TopicInfo, open_topic
from duramen.store.topic import FOLLOW_POLL_S, PARTITION, Placed, PlacedOnce, Topic, TopicProducer, TopicRecord, split
from duramen.store.transfer import TreeTransfer
