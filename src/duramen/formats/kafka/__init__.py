"""Kafka: partitions of topics, as a broker stores them.

- `kafka`: the format (`Kafka`), with the list of its files; `segment` scans and decodes one file of batches.
- `encoder` makes batches of records. `batch` unfolds batches into records, `message_set` the messages of the older
  formats, `codec` what is compressed, `headers` the headers of records.
- `indexes` and `state_files` read and write the derived files, `transactions` finds aborted and open transactions,
  `producers` adds up the state of producers, and `state_check` compares derived files with batches.
- `internal`: the records of Kafka's internal topics; `dump`: what `duramen dump` shows.
"""

from __future__ import annotations

from duramen.formats.kafka.internal import CONSUMER_OFFSETS, CommittedOffset, GroupTable, KafkaGroup
from duramen.formats.kafka.kafka import Kafka
from duramen.formats.kafka.segment import starts_with_batch
from duramen.formats.kafka.state_files import PartitionOffset, parse_offsets, parse_properties
