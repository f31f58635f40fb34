"""What a value and a key may be: bytes or text, the same through every door; and pairs of key and value."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
import duramen.aio
from tests.warm import duramen as command

TEXT, UTF8 = "grün", "grün".encode()


def by_append(path: Path, value: Any, key: Any) -> None:
    with duramen.open(path, "a") as log:
        log.append(value, key=key)


def by_batch(path: Path, value: Any, key: Any) -> None:
    with duramen.open(path, "a") as log:
        log.append_batch([(key, value)])


def by_arrow(path: Path, value: Any, key: Any) -> None:
    with duramen.open(path, "a") as log:
        log.append_batch(pa.table({"key": [key], "value": [value]}))


def by_producer(path: Path, value: Any, key: Any) -> None:
    with duramen.open(path, "a") as log:
        log.producer("p").append(value, key=key)


def by_aio(path: Path, value: Any, key: Any) -> None:
    async def main() -> None:
        async with duramen.aio.open(path, "a") as log:
            await log.append(value, key=key)

    asyncio.run(main())


DOORS = [by_append, by_batch, by_arrow, by_producer, by_aio]


@pytest.mark.parametrize("door", DOORS)
def test_text_is_stored_as_utf8(door: Callable[..., None], tmp_path: Path) -> None:
    door(tmp_path / "log", TEXT, TEXT)
    with duramen.open(tmp_path / "log") as log:
        assert [(record.key, record.value) for record in log] == [(UTF8, UTF8)]


@pytest.mark.parametrize("value", [3, 1.5, ["a"]], ids=repr)
@pytest.mark.parametrize("door", DOORS)
def test_nothing_else_is(door: Callable[..., None], value: Any, tmp_path: Path) -> None:
    for pair in ((value, b"k"), (b"v", value), ("\udc80", None)):
        with pytest.raises((duramen.UsageError, pa.ArrowInvalid, UnicodeError)) as caught:
            door(tmp_path / "log", *pair)
        assert door is by_arrow or isinstance(caught.value, duramen.UsageError)


def test_a_topic_takes_text_and_pairs(tmp_path: Path) -> None:
    """A key goes to the same partition, as bytes and as text."""
    with duramen.Store(tmp_path) as store:
        topic = store.create("t", partitions=16)
        placed = topic.append(TEXT, key=TEXT)
        assert topic.append(b"v", key=UTF8).partition == placed.partition
        assert topic.append("v", routing_key=TEXT).partition == placed.partition
        stored = topic.append_batch([(TEXT, TEXT), (UTF8, b"w"), (TEXT, "x")])
        assert stored == {placed.partition: duramen.Appended(3, 3)}
        assert topic.append_batch(["a", b"b"], routing_key=[TEXT, UTF8]) == {placed.partition: duramen.Appended(6, 2)}
        values = [record.value for record in topic.scan(placed.partition)]
        assert values == [UTF8, b"v", b"v", UTF8, b"w", b"x", b"a", b"b"]
        for keys in ([3], [object()], 3):
            with pytest.raises(duramen.UsageError):
                topic.append_batch([b"v"], routing_key=keys)


def test_a_batch_of_pairs(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        assert log.append_batch([(b"a", b"1"), (None, b"2"), ("c", None)]) == duramen.Appended(0, 3)
        assert log.append_batch((key, b"3") for key in (b"a", b"b")) == duramen.Appended(3, 2)
        held = [(record.key, record.value) for record in log]
        assert held == [(b"a", b"1"), (None, b"2"), (b"c", None), (b"a", b"3"), (b"b", b"3")]
        for wrong in (
            [(b"a", b"1"), b"2"],
            [b"2", (b"a", b"1")],
            [(b"a", b"1", b"2")],
            [()],
            "ab",
            b"ab",
            {b"a": b"1"},
        ):
            with pytest.raises(duramen.UsageError):
                log.append_batch(wrong)
        assert log.next_offset == 5
    with duramen.open(tmp_path / "plain", "a", format="durable-log") as log:
        assert log.append_batch([(None, b"1")]).count == 1
        with pytest.raises(duramen.UnsupportedFieldError, match="key"):
            log.append_batch([(b"k", b"1")])


@pytest.mark.parametrize("line", ['{"value": 3}', '{"value": {"a": 1}}', '{"value": "v", "key": 3}'])
def test_the_command_line_refuses_what_is_not_text(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    done = subprocess.run(
        [*command(), "append", str(path), "--jsonl"], input=line.encode(), capture_output=True, check=False
    )
    assert (done.returncode, b"must be text" in done.stderr) == (2, True)
