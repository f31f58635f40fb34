"""How fast AMQP messages become columns on one core, beside a copy of their bytes.

A row is one way that clients fill messages: the body alone, and with the properties that applications set."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.measure import one_core, take_turns
from bench.report import Table, at_least
from duramen.formats import binary_buffers
from duramen.values import decoder

BODIES = (100, 1024)
STEP_BYTES = 4 << 20
BAR_GB = 1.0
"""GB of values per second on one core, with bodies of 1 KiB."""


def _sized(code: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes([code, len(content)]) + content
    return bytes([code + 0x10]) + struct.pack(">I", len(content)) + content


def _counted(code: int, count: int, content: bytes) -> bytes:
    return bytes([code]) + struct.pack(">II", len(content) + 4, count) + content


def message(body: bytes, number: int, *, properties: bool) -> bytes:
    """A message of one section of data; with a message id and two application properties before it."""
    data = b"\0\x53\x75" + _sized(0xA0, body)
    if not properties:
        return data
    fields = _counted(0xD0, 1, b"\x80" + struct.pack(">Q", number))
    pairs = [_sized(0xA1, b"region"), _sized(0xA1, b"eu-west"), _sized(0xA1, b"attempt"), b"\x54\x03"]
    return b"\0\x53\x73" + fields + b"\0\x53\x74" + _counted(0xD1, 4, b"".join(pairs)) + data


def messages(body_bytes: int, total_bytes: int, *, properties: bool) -> pa.BinaryArray:
    body = np.random.default_rng(7).bytes(body_bytes)
    count = total_bytes // body_bytes
    return pa.array([message(body, number, properties=properties) for number in range(count)], pa.binary())


def decoding(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "AMQP messages to columns, one core (GB of values per second)",
        ["messages", "decoded", "bar", "copied", "decoded ÷ copied", "ns per message"],
        _rows(5 if quick else 60),
        "Best of rounds that take turns. Copied: memcpy of the same bytes.",
    )


def _rows(rounds: int) -> Iterator[list[str]]:
    amqp = decoder("amqp")
    for body_bytes in BODIES:
        for properties in (False, True):
            values = messages(body_bytes, STEP_BYTES, properties=properties)
            offsets = pa.array(np.arange(len(values)))
            data, _ = binary_buffers(values)
            source, target = np.frombuffer(data, np.uint8), np.empty(len(data), np.uint8)
            contestants = {
                "decoded": lambda offsets=offsets, values=values: amqp.decode(offsets, values),
                "copied": lambda source=source, target=target: np.copyto(target, source),
            }
            with one_core():
                samples = take_turns(contestants, rounds)
            decoded, copied = (len(data) / samples[name].best / 1e9 for name in ("decoded", "copied"))
            name = f"{body_bytes} B" + (", 3 properties" if properties else "")
            bar = at_least(decoded, BAR_GB, f"decode amqp, {name}, GB/s") if body_bytes >= 1024 else ""
            per_message = f"{samples['decoded'].best / len(values) * 1e9:.0f}"
            yield [name, f"{decoded:.2f}", bar, f"{copied:.2f}", f"{decoded / copied:.2f}", per_message]
