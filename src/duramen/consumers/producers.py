"""Producers: appends that a caller can repeat without storing a record twice.

A producer has a name and numbers its records. The log stores each producer's last sequence as durably as the record
itself (`duramen.log.write.producer_state`). A record whose sequence is not above the last one is already in the log:
the log confirms it and does not store it again. A caller that does not know whether an append arrived (a crash, a
timeout, a lost response) repeats it with the same sequence. Sequences may have gaps and never decrease.

Producers work in every format. Osiris chunks and Kafka batches store the sequences, too; an Osiris log knows the
producers that RabbitMQ served. A producer without a record in the log is unknown, and its first append is never a
duplicate.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from duramen.arguments import check_int
from duramen.errors import UsageError
from duramen.log import (
    MAX_SEQUENCE,
    Batch,
    Content,
    HeadersIn,
    Log,
    SequenceClaim,
    WritableLog,
    batch_of,
    batch_of_one,
    read_producers,
)

if TYPE_CHECKING:
    from duramen.log import Last

MAX_NAME_BYTES = 255


class Confirmed(NamedTuple):
    """Result of an append. ``sequence`` belongs to the last record. ``stored`` records follow one another from
    ``base_offset`` (None if none was stored); ``duplicates`` were already in the log."""

    sequence: int
    base_offset: int | None
    stored: int
    duplicates: int

    @property
    def is_duplicate(self) -> bool:
        """Whether the log already held every record."""
        return not self.stored and self.duplicates > 0


class ProducerState(NamedTuple):
    """A producer's last sequence, and the offset of that record or of its chunk."""

    name: str
    sequence: int
    offset: int


class Producer:
    """A named producer, created by ``log.producer(name)``. Safe to use from several threads.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/events", "a") as log:
    ...     till = log.producer("till 4")
    ...     print(till.append(b"one beer", sequence=1))
    ...     print(till.append(b"one beer", sequence=1).is_duplicate, log.next_offset)
    Confirmed(sequence=1, base_offset=0, stored=1, duplicates=0)
    True 1
    """

    def __init__(self, log: WritableLog, name: str) -> None:
        self._raw = check_producer(name)
        self.name = name
        self._log = log
        self._sequences = log.sequences()

    @property
    def last_sequence(self) -> int | None:
        """Sequence of its last record in the log, or None."""
        last = self._sequences.last(self._raw)
        return None if last is None else last.sequence

    def append(
        self,
        value: Content | None,
        *,
        sequence: int | None = None,
        key: Content | None = None,
        headers: HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> Confirmed:
        """Append one record unless the log already holds its sequence. Without a sequence it gets the next one,
        starting at 1."""
        batch = batch_of_one(self._log.codec, value, key, headers, timestamp)
        return self._submit(batch, sequence, durability, timeout_s)

    def append_batch(
        self,
        data: Any,
        *,
        sequence: int | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> Confirmed:
        """Append many records; ``data`` as for ``log.append_batch``. ``sequence`` belongs to the first record and
        increases by one per record. If the log already holds a prefix of the batch, it stores the rest."""
        batch = batch_of(self._log.codec, data)
        if not batch.num_rows:
            raise UsageError("a producer's batch must contain at least one record (got 0)", path=self._log.path)
        return self._submit(batch, sequence, durability, timeout_s)

    def _submit(self, batch: Batch, sequence: int | None, durability: str | None, timeout_s: float | None) -> Confirmed:
        if sequence is not None:
            sequence = check_int("sequence", sequence, most=MAX_SEQUENCE - batch.num_rows + 1)
        claim = SequenceClaim(self._raw, sequence)
        done = self._log.submit(batch, durability, timeout_s, claim)
        base = done.base_offset if done.count else None
        return Confirmed(claim.first + done.count - 1, base, done.count, claim.duplicates)

    def __repr__(self) -> str:
        return f"<duramen.Producer {self.name!r} of {self._log.path!r}>"


def check_producer(name: str) -> bytes:
    """Encode a producer's name: any text of 1 to 255 bytes. The log stores it as content, never as a file name."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a producer must be str (got {type(name).__name__})")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the name of a producer must be valid Unicode (got {name!r})") from error
    if not 1 <= len(raw) <= MAX_NAME_BYTES:
        raise UsageError(f"the name of a producer must have 1 to {MAX_NAME_BYTES} bytes (got {len(raw)})")
    return raw


def producers(log: Log) -> list[ProducerState]:
    """Every producer of a log, sorted by name."""
    known: dict[bytes, Last] = log.sequences().known if isinstance(log, WritableLog) else read_producers(log)
    return [
        ProducerState(name.decode("utf-8", "backslashreplace"), last.sequence, last.offset)
        for name, last in sorted(known.items())
    ]
