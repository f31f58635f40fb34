"""Producers: appends that can be repeated without being stored twice.

A producer has a name and counts its records. The log remembers each producer's last sequence, as durably as the record
itself: see `duramen.log.sequences`. A record whose sequence is not above the last one is in the log already; it is
confirmed and not stored. So whoever does not know whether an append arrived (a crash, a timeout, a lost answer) sends
it again, with the same sequence. Sequences may have gaps and never go back.

Works for every format. An Osiris log carries the sequences in its chunks, too, as RabbitMQ does, and knows the
producers that RabbitMQ served. Refuses to guess: a producer that has no record in the log is unknown, and nothing that
it sends is taken for a repeat.
"""

from __future__ import annotations

from datetime import datetime
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from duramen.errors import UsageError
from duramen.log import intake, sequences
from duramen.log.reader import Log
from duramen.log.sequences import MAX_SEQUENCE, Claim
from duramen.log.writer import WritableLog

if TYPE_CHECKING:
    from duramen.log.sequences import Last

MAX_NAME_BYTES = 255


class Confirmed(NamedTuple):
    """What became of an append. ``sequence`` is that of its last record. ``base_offset`` is where the first record that
    was stored is, None where none was; ``stored`` follow one another from there, and ``duplicates`` were in the log
    before."""

    sequence: int
    base_offset: int | None
    stored: int
    duplicates: int

    @property
    def is_duplicate(self) -> bool:
        """Whether everything was there already."""
        return not self.stored and self.duplicates > 0


class ProducerState(NamedTuple):
    """What a log knows of a producer: its last sequence, and the offset of that record or of the chunk it is in."""

    name: str
    sequence: int
    offset: int


class Producer:
    """A named sender. Made by ``log.producer(name)``; safe to use from several threads.

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
        """The sequence of its last record in the log; None where there is none."""
        last = self._sequences.known.get(self._raw)
        return None if last is None else last.sequence

    def append(
        self,
        value: bytes | bytearray | memoryview,
        *,
        sequence: int | None = None,
        key: bytes | None = None,
        headers: intake.HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> Confirmed:
        """Append one record, unless its sequence says that it is there. Without a sequence it gets the next one; the
        very first is 1."""
        batch = intake.one(self._log.codec, value, key, headers, timestamp)
        return self._submit(batch, sequence, durability, timeout_s)

    def append_batch(
        self,
        data: Any,
        *,
        sequence: int | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> Confirmed:
        """Append many records, as ``log.append_batch`` takes them. ``sequence`` is that of the first one, and each
        has one more than the one before it. Of a batch that is there in part the rest is stored."""
        batch = intake.many(self._log.codec, data)
        if not batch.num_rows:
            raise UsageError("a producer's batch without records has no sequence", path=self._log.path)
        return self._submit(batch, sequence, durability, timeout_s)

    def _submit(
        self, batch: intake.Batch, sequence: int | None, durability: str | None, timeout_s: float | None
    ) -> Confirmed:
        if sequence is not None:
            sequence = index(sequence)
            if not 0 <= sequence <= MAX_SEQUENCE - batch.num_rows + 1:
                raise UsageError(f"a sequence is a number from 0 to 2**64 - 1, not {sequence}", path=self._log.path)
        claim = Claim(self._raw, sequence)
        answer = self._log.submit(batch, durability, timeout_s, claim)
        base = answer.base_offset if answer.count else None
        return Confirmed(claim.first + answer.count - 1, base, answer.count, claim.duplicates)

    def __repr__(self) -> str:
        return f"<duramen.Producer {self.name!r} of {self._log.path!r}>"


def check_producer(name: str) -> bytes:
    """The bytes of a producer's name: any text of 1 to 255 bytes. It is stored as content, never as a file name."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a producer is text, not {type(name).__name__}")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the name of a producer is not Unicode text") from error
    if not 1 <= len(raw) <= MAX_NAME_BYTES:
        raise UsageError(f"the name of a producer has 1 to {MAX_NAME_BYTES} bytes, not {len(raw)}")
    return raw


def producers(log: Log) -> list[ProducerState]:
    """Every producer that a log knows, in the order of the names."""
    known: dict[bytes, Last] = log.sequences().known if isinstance(log, WritableLog) else sequences.read(log)
    return [
        ProducerState(name.decode("utf-8", "backslashreplace"), last.sequence, last.offset)
        for name, last in sorted(known.items())
    ]
