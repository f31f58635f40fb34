"""Kafka partitions: verify and decode against memcpy, and compressed batches against the bare codec on the same bytes.

The batches are packed here, with as many records as a producer puts into one by default (16 KiB).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import numpy as np

from bench.measure import best_seconds, one_core
from bench.reading import BARRED_PAYLOAD, PAYLOADS, scan_all
from bench.report import Table, at_least
from duramen import kernel
from duramen.formats import SCAN_BYTES, make
from duramen.formats.arrow import allocate
from duramen.formats.kafka.batch import HEADER
from duramen.formats.kafka.codec import KafkaCompression

BATCH_BYTES = 16 << 10
VERIFY_BAR, DECODE_BAR, CODEC_BAR = 0.6, 0.4, 0.8
_COVERED_AT = HEADER.at("attributes")
_CODECS: dict[KafkaCompression, Any] = {
    KafkaCompression.LZ4: cramjam.lz4,
    KafkaCompression.ZSTD: cramjam.zstd,
    KafkaCompression.SNAPPY: cramjam.snappy,
    KafkaCompression.GZIP: cramjam.gzip,
}


def partitions(scratch: Path, quick: bool) -> Iterator[Table]:
    size_bytes, rounds = (16 << 20, 3) if quick else (128 << 20, 7)
    yield Table(
        "Kafka, one core: verify and decode uncompressed batches to Arrow, against memcpy of the same bytes",
        [
            "payload",
            "batch",
            "memcpy GB/s",
            "verify GB/s",
            "× memcpy",
            "bar",
            "decode GB/s",
            "× memcpy",
            "bar",
            "× floor",
        ],
        _uncompressed(size_bytes, rounds),
    )
    yield Table(
        "Kafka, one core: decode compressed batches of 1 KiB JSON records to Arrow, against the bare codec",
        ["codec", "batch", "ratio", "codec GB/s", "verify GB/s", "decode GB/s", "× codec", "bar", "× floor"],
        _compressed(size_bytes // 2, rounds),
    )


def _uncompressed(size_bytes: int, rounds: int) -> Iterator[list[str]]:
    for payload in PAYLOADS:
        for batch_bytes in (BATCH_BYTES, 64 * BATCH_BYTES):
            noise = np.random.default_rng(1).bytes(1 << 20)
            data = np.frombuffer(_log(noise, payload, batch_bytes, size_bytes, KafkaCompression.NONE)[0], np.uint8)
            target = np.empty_like(data)
            segment = make("kafka").open_segment(memoryview(data), 0)  # type: ignore[arg-type]
            seconds = _take_turns(
                rounds,
                memcpy=lambda target=target, data=data: np.copyto(target, data),
                verify=lambda segment=segment: scan_all(segment, decode=False),
                decode=lambda segment=segment: scan_all(segment, decode=True),
                floor=lambda data=data, batch_bytes=batch_bytes: _checked_copy(memoryview(data), batch_bytes),
            )
            row = [f"{payload:,} B", f"{batch_bytes >> 10} KiB", f"{len(data) / seconds['memcpy'] / 1e9:.1f}"]
            for work, bar in (("verify", VERIFY_BAR), ("decode", DECODE_BAR)):
                ratio = seconds["memcpy"] / seconds[work]
                what = f"Kafka {work}, {payload} B in batches of {batch_bytes >> 10} KiB, × memcpy"
                verdict = at_least(ratio, bar, what) if payload == BARRED_PAYLOAD else ""
                row += [f"{len(data) / seconds[work] / 1e9:.1f}", f"{ratio:.2f}", verdict]
            yield [*row, f"{seconds['floor'] / seconds['decode']:.2f}"]


def _compressed(size_bytes: int, rounds: int) -> Iterator[list[str]]:
    text = _json(1 << 20)
    for compression, codec in _CODECS.items():
        for batch_bytes in (BATCH_BYTES, 8 * BATCH_BYTES):
            data, bodies, plain_bytes = _log(text, BARRED_PAYLOAD, batch_bytes, size_bytes, compression)
            segment = make("kafka").open_segment(memoryview(data), 0)
            out = memoryview(bytearray(2 * batch_bytes))
            into = codec.decompress_raw_into if compression == KafkaCompression.SNAPPY else codec.decompress_into
            seconds = _take_turns(
                rounds,
                codec=lambda bodies=bodies, out=out, into=into: [into(body, out) for body in bodies],
                verify=lambda segment=segment: scan_all(segment, decode=False),
                decode=lambda segment=segment: scan_all(segment, decode=True),
                floor=lambda bodies=bodies, into=into, room=len(out): _unfolded_copy(bodies, into, room),
            )
            name, ratio = compression.name.lower(), seconds["codec"] / seconds["decode"]
            is_barred = compression in (KafkaCompression.LZ4, KafkaCompression.ZSTD)
            what = f"Kafka decode, {name} in batches of {batch_bytes >> 10} KiB, × the bare codec"
            yield [
                name, f"{batch_bytes >> 10} KiB", f"{plain_bytes / len(data):.1f}",
                *(f"{plain_bytes / seconds[work] / 1e9:.2f}" for work in ("codec", "verify", "decode")),
                f"{ratio:.2f}", at_least(ratio, CODEC_BAR, what) if is_barred else "",
                f"{seconds['floor'] / seconds['decode']:.2f}",
            ]  # fmt: skip


def _checked_copy(data: memoryview, batch_bytes: int) -> None:
    """What no decoder avoids: checksum every byte, and copy it into memory of which the consumer still has a step."""
    kept = memoryview(b"")
    for start in range(0, len(data), SCAN_BYTES):
        step = data[start : start + SCAN_BYTES]
        for at in range(0, len(step), batch_bytes):
            kernel.crc32c(step[at : at + batch_bytes])
        out = allocate(len(step))
        out[:] = step
        kept = out
    kept.release()


def _unfolded_copy(bodies: list[bytes], into: Callable[[bytes, Any], int], room_bytes: int) -> None:
    """The same for compressed batches: checksum, unfold one after another, copy."""
    kept = memoryview(b"")
    for first in range(0, len(bodies), some := max(SCAN_BYTES // room_bytes, 1)):
        plain, at = allocate(some * room_bytes), 0
        for body in bodies[first : first + some]:
            kernel.crc32c(body)
            at += into(body, plain[at : at + room_bytes])
        out = allocate(at)
        out[:] = plain[:at]
        kept = out
    kept.release()


def _take_turns(rounds: int, **contestants: Callable[[], object]) -> dict[str, float]:
    with one_core():
        return best_seconds(contestants, rounds)


def _json(size_bytes: int) -> bytes:
    """Text as services write it: repeated names, numbers and words that differ."""
    draw = random.Random(1)
    lines = []
    while sum(map(len, lines)) < size_bytes:
        lines += [
            json.dumps(
                {"order_id": draw.getrandbits(48), "customer": f"customer-{draw.randrange(5000)}",
                 "status": draw.choice(["created", "paid", "shipped", "returned"]), "amount": draw.random() * 100,
                 "trace": f"{draw.getrandbits(64):016x}"}
            ).encode()
            for _ in range(1000)
        ]  # fmt: skip
    return b"".join(lines)[:size_bytes]


def _log(
    source: bytes, payload: int, batch_bytes: int, size_bytes: int, compression: KafkaCompression
) -> tuple[bytes, list[bytes], int]:
    """A segment with the values taken from ``source``, the compressed bodies, and what they unfold to."""
    made, bodies, plain_bytes, written, offset = [], [], 0, 0, 0
    count, draw = max(batch_bytes // payload, 1), random.Random(1)
    while written < size_bytes:
        starts = [draw.randrange(len(source) - payload) for _ in range(count)]
        plain = b"".join(_record(delta, source[at : at + payload]) for delta, at in enumerate(starts))
        body = _packed(plain, compression)
        header = HEADER.pack(
            base_offset=offset, length=HEADER.size - 12 + len(body), leader_epoch=0, magic=2, crc=0,
            attributes=int(compression), last_delta=count - 1, base_timestamp=1_700_000_000_000,
            max_timestamp=1_700_000_000_000 + count - 1, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            records=count,
        )  # fmt: skip
        batch = bytearray(header + body)
        crc = kernel.crc32c(bytes(batch[_COVERED_AT:]))
        batch[HEADER.at("crc") : _COVERED_AT] = crc.to_bytes(4, "big")
        made.append(bytes(batch))
        bodies.append(body)
        offset, written, plain_bytes = offset + count, written + len(batch), plain_bytes + len(plain)
        if compression:
            written += len(plain) - len(batch)
    return b"".join(made), bodies, plain_bytes


def _record(delta: int, value: bytes) -> bytes:
    key = b"%08d" % delta
    body = b"\0" + _varint(delta) + _varint(delta) + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _packed(plain: bytes, compression: KafkaCompression) -> bytes:
    if compression == KafkaCompression.NONE:
        return plain
    if compression == KafkaCompression.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(plain))
    return bytes(_CODECS[compression].compress(plain))
