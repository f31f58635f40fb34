"""Kafka's own clients, from the broker's jars: a JVM that takes commands (`KafkaClient.java`)."""

from __future__ import annotations

import base64
import json
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from bench.brokers import install, kafkanode

SOURCE = Path(__file__).with_name("KafkaClient.java")
CALL_TIMEOUT_S = 300


class ConsumedRecord(NamedTuple):
    """A record of a partition, as a consumer returns it. The time is -1 where there is none."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ConsumedPartition(NamedTuple):
    records: list[ConsumedRecord]
    beginning: int
    end: int


class CommittedGroupOffset(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int
    metadata: str


class KafkaClient:
    """Calls to a broker. Ends its JVM on leaving."""

    def __init__(self, address: str) -> None:
        jars = install.jars("kafka", kafkanode.JARS)
        command = [install.java(), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars}/*"]
        self._process = subprocess.Popen(
            [*command, str(SOURCE), address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _call(self, do: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], CALL_TIMEOUT_S)[0]:
            raise RuntimeError(f"{do}: Kafka's clients have not answered for {CALL_TIMEOUT_S} s")
        line = self._process.stdout.readline()  # one for every command
        if not line:
            raise RuntimeError(f"the JVM of Kafka's clients ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{do}: {answer['error']}")
        return answer["ok"]

    def create(self, topics: Sequence[str], partitions: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        rows = [{"name": name, "partitions": partitions, "config": settings} for name in topics]
        self._call("create", topics=rows)

    def consume(self, topic: str, isolation: str, partition: int = 0) -> ConsumedPartition:
        """Everything from the first record to the end that the isolation allows."""
        found = self._call("consume", topic=topic, partition=partition, isolation=isolation)
        return ConsumedPartition([_record(row) for row in found["records"]], found["beginning"], found["end"])

    def produce(
        self, rows: Sequence[tuple[str, ConsumedRecord]], *, end: str | None = None, name: str = "",
        compression: str = "none", idempotent: bool = True, group: str = "",
        offsets: Sequence[tuple[str, int, int, str]] = (),
    ) -> list[int]:  # fmt: skip
        """Append each record to partition 0 of its topic, in a transaction with that ``end``, if any, which may commit
        ``offsets`` of a ``group``; return offsets in the order of the records."""
        records = [
            {
                "topic": topic, "partition": 0, "timestamp": row.timestamp_ms, "key": _text(row.key),
                "value": _text(row.value), "headers": [[key, _text(value)] for key, value in row.headers],
            }
            for topic, row in rows
        ]  # fmt: skip
        found: list[int] = self._call(
            "produce", records=records, end=end, name=name, compression=compression, idempotent=idempotent,
            group=group, offsets=_offsets(offsets),
        )  # fmt: skip
        return found

    def commit(self, group: str, offsets: Sequence[tuple[str, int, int, str]], protocol: str = "classic") -> None:
        """Commit (topic, partition, offset, metadata) as a member of the group."""
        self._call("commit", group=group, offsets=_offsets(offsets), protocol=protocol)

    def groups(self) -> list[CommittedGroupOffset]:
        """The committed offsets of all groups, sorted."""
        rows = self._call("groups")
        return sorted(CommittedGroupOffset(*(row[name] for name in CommittedGroupOffset._fields)) for row in rows)

    def delete_records(self, topic: str, offset: int) -> None:
        """Delete the records before the offset from partition 0."""
        self._call("delete_records", topic=topic, offset=offset)

    def delete_groups(self, groups: Sequence[str] = (), offsets: Sequence[tuple[str, str, int]] = ()) -> None:
        """Delete groups, and offsets (group, topic, partition)."""
        rows = [dict(zip(("group", "topic", "partition"), one, strict=True)) for one in offsets]
        self._call("delete_groups", groups=list(groups), offsets=rows)


def _record(row: dict[str, Any]) -> ConsumedRecord:
    headers = tuple((key, _bytes(value)) for key, value in row["headers"])
    return ConsumedRecord(row["offset"], row["timestamp"], _bytes(row["key"]), _bytes(row["value"]), headers)


def _offsets(offsets: Sequence[tuple[str, int, int, str]]) -> list[dict[str, Any]]:
    return [dict(zip(("topic", "partition", "offset", "metadata"), one, strict=True)) for one in offsets]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
