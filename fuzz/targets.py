"""The decoders, one target each: what bytes go in, what is done with them, and from which seeds to start.

A target is a function of bytes that returns, or raises because a promise is broken. It holds no state: the same bytes
give the same outcome in the fuzzer, in the tests and in a replay.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.formats import FileName, Format, Role, make, stroma
from duramen.formats.detect import detect_directory, detect_file
from duramen.formats.keratin.header_block import decode_block, decode_blocks, encode_block
from duramen.formats.keratin.manifest import Manifest
from duramen.formats.osiris.chunk import SUB_BATCH, Chunk, SimpleEntry, SubBatch, encode_chunk
from duramen.formats.osiris.osiris import LOG_HEADER
from duramen.formats.osiris.tracking import Tracking, encode_blocks, parse_blocks
from duramen.formats.rustlog import Checkpoint
from duramen.kernel import AmqpField, AmqpSpans
from duramen.log.verify.verify import verify_log
from duramen.record import TIMESTAMP
from duramen.values import decoder
from fuzz import agreement, checks, mending, seeds
from fuzz.checks import may_refuse
from fuzz.memory import MemoryDisk
from tests.formats.stroma import plain
from tests.values import amqp_messages as amqp

Run = Callable[[bytes], None]


class Target(NamedTuple):
    run: Run
    seeds: Callable[[], Sequence[bytes]]
    mend: mending.Mend | None = None

    def __call__(self, data: bytes) -> None:
        """The bytes as they are, and once more with their checksums made right."""
        self.run(data)
        if self.mend is not None and (mended := self.mend(data)) != data:
            self.run(mended)


SLOTS = make("fixed-slot", record_size=mending.SLOT_RECORD_BYTES)
DURABLE, KERATIN, RUSTLOG, OSIRIS = (make(name) for name in ("durable-log", "keratin", "rustlog", "osiris"))
KAFKA = make("kafka", max_uncompressed_bytes=1 << 20)


# --- segments


def segment(fmt: Format) -> Run:
    options = dict(fmt.options)

    def run(data: bytes) -> None:
        checks.segment(fmt, data, 0 if zlib.crc32(data) & 1 else None)
        checks.log(fmt, fmt.segment_path(0), data, **options)

    return run


def rustlog_both(data: bytes) -> None:
    """Fixed-slot and RustLog have no magic number: any bytes may be taken for either."""
    segment(RUSTLOG)(data)
    with may_refuse():
        detect_file("00000000000000000000.log", data)


KAFKA_LOG = {KAFKA.segment_path(0): (seeds.DATA / "kafka/clean/txn-0/00000000000000000000.log").read_bytes()}
KAFKA_STATE = {
    Role.INDEX: 0, Role.TIME_INDEX: 0, Role.TXN_INDEX: 0, Role.PRODUCER_SNAPSHOT: 9, Role.LEADER_EPOCHS: None,
    Role.METADATA: None, Role.SWAP: 0,
}  # fmt: skip


def kafka_state(data: bytes) -> None:
    """The small files of a partition, whichever the bytes are taken for."""
    files = dict(KAFKA_LOG)
    for role, base in KAFKA_STATE.items():
        name = f"{0:020}.log.swap" if role == Role.SWAP else KAFKA.path_of(role, base)
        if role != Role.SWAP:
            checks.dump(KAFKA, role, data, base)
        files[name] = data
    checks.report_is_sane(verify_log(MemoryDisk.ROOT, format="kafka", disk=MemoryDisk(files)))
    KAFKA.describe(files)


def kafka_segment(data: bytes) -> None:
    """Both isolation levels; the second looks at control records, too. Then the sequences of named producers."""
    segment(KAFKA)(data)
    with may_refuse():
        KAFKA.sequences([KAFKA.open_segment(data, 0)], {}.get)  # type: ignore[attr-defined]
    options = {"isolation": "read_committed", "log_start_offset": zlib.crc32(data) % 9}
    checks.read_all(KAFKA, MemoryDisk({KAFKA.segment_path(0): data}), {**KAFKA.options, **options})


# --- what lies beside a segment

VALUES = {offset: b"value %d" % offset for offset in range(12)}


def small_log(fmt: Format) -> dict[str, bytes]:
    """A log of twelve records without its indexes."""
    columns = {
        "offset": pa.array(list(VALUES), pa.int64()),
        "value": pa.array(list(VALUES.values()), pa.binary()),
    }
    if fmt.capabilities.timestamps:
        times = [1_700_000_000_000_000 + offset * 1000 for offset in VALUES]
        columns["timestamp"] = pa.array(times, pa.int64()).view(TIMESTAMP.type)
    files = dict(fmt.build([pa.RecordBatch.from_pydict(columns)]))
    return {name: data for name, data in files.items() if name == fmt.segment_path(0)}


KERATIN_LOG, RUSTLOG_LOG = small_log(KERATIN), small_log(RUSTLOG)


def index(fmt: Format, role: Role = Role.INDEX) -> Run:
    files = small_log(fmt)
    return lambda data: checks.index(fmt, role, data, files, VALUES)


def small_index(fmt: Format, role: Role = Role.INDEX, **options: int) -> bytes:
    """The index that the small log would have, dense enough to hold a few entries."""
    dense = make(fmt.name, **options)
    opened = dense.open_segment(small_log(fmt)[fmt.segment_path(0)], 0)
    builder = dense.index_builder(0, 0)
    builder.add(opened.scan(opened.start))
    return builder.build()[role]


def manifest(data: bytes) -> None:
    checks.dump(KERATIN, Role.MANIFEST, data)
    with may_refuse():
        read = Manifest.decode(data)
        list(read.problems())
        assert Manifest.decode(read.encode()) == read
    files = {**KERATIN_LOG, "manifest.bin": data}
    checks.report_is_sane(verify_log(MemoryDisk.ROOT, format="keratin", disk=MemoryDisk(files)))
    KERATIN.describe({"manifest.bin": data})


def group_file(role: Role, suffix: str, survives: Run) -> Run:
    """A file of a group's state; ``survives`` decodes it and encodes it again."""
    name = f"groups/orders-0_billing.{suffix}"

    def run(data: bytes) -> None:
        checks.dump(KERATIN, role, data)
        for problem in KERATIN.check_file(role, data, FileName(role)):
            assert problem.message
        with may_refuse():
            survives(data)
        files = {**KERATIN_LOG, name: data}
        checks.report_is_sane(verify_log(MemoryDisk.ROOT, format="keratin", disk=MemoryDisk(files)))
        KERATIN.describe({name: data})

    return run


def snapshot_survives(data: bytes) -> None:
    """What is written is in order, whatever was read; written again it is the same."""
    written = plain.StromaSnapshot.decode(data).encode()
    assert plain.StromaSnapshot.decode(written).encode() == written


def delta_survives(data: bytes) -> None:
    found = stroma.find_event(data, len(data) // 2)
    assert found < 0 or len(data) // 2 <= found <= len(data)
    read = plain.Delta.decode(data)
    assert 0 <= read.end <= len(data)
    assert read.resumes_at < 0 or read.end < read.resumes_at < len(data)
    assert plain.Delta.decode(read.encode()).events == read.events


def checkpoint(data: bytes) -> None:
    checks.dump(RUSTLOG, Role.CHECKPOINT, data)
    with may_refuse():
        read = Checkpoint.parse(data)
        assert Checkpoint.parse(read.encode()) == read
    RUSTLOG.describe({".cleaner_checkpoint": data})
    files = {**RUSTLOG_LOG, ".cleaner_checkpoint": data}
    report = verify_log(MemoryDisk.ROOT, format="rustlog", disk=MemoryDisk(files))
    assert report.ok
    checks.report_is_sane(report)


# --- what lies inside a record


def user_headers(data: bytes) -> None:
    """Decoding and encoding undo each other, for one block and for a column of them."""
    parts = [data, data[: len(data) // 2], b"", data[4:]]
    for has_payload in (False, True):
        fields = [decode_block(part, has_payload) for part in parts]
        assert [encode_block(*each, has_payload) for each in fields] == parts
        keys, headers, is_null = decode_blocks(pa.array(parts, pa.binary()), np.full(len(parts), has_payload))
        assert keys.to_pylist() == [each.key for each in fields]
        lists = [None if e.headers is None else [{"key": k, "value": v} for k, v in e.headers] for e in fields]
        assert headers.to_pylist() == lists
        assert is_null.tolist() == [each.is_null for each in fields]


def tracking(data: bytes) -> None:
    snapshot = bool(data[:1] != b"\0")
    with may_refuse():
        blocks = parse_blocks(data[1:], snapshot=snapshot)
        assert encode_blocks(blocks, snapshot=snapshot) == data[1:]
        state = Tracking()
        state.update(7, blocks)
        assert len(str(state.as_text())) > 0
        again = Tracking()
        again.replace(state.snapshot_blocks())
        assert again == state
        state.pruned(3, 0)


def sub_batch(data: bytes) -> None:
    """A sub-batch of any kind inside a chunk that is right: what it states is all that it may lie about."""
    if len(data) < SUB_BATCH.size:
        return
    head, body = SUB_BATCH.unpack(data), data[SUB_BATCH.size :]
    numbers = [int(head[name]) for name in ("type", "num_records", "uncompressed_length")]
    batch = SubBatch(numbers[0] >> 4 & 7, numbers[1], numbers[2], body, numbers[0] & 15)
    entries = (SimpleEntry(b"before"), batch, SimpleEntry(b"behind"))
    chunk = encode_chunk(Chunk(0, 1_700_000_000_000, 1, entries=entries))
    segment(OSIRIS)(LOG_HEADER + chunk + chunk[:20])


# --- which format

NAMES = (
    "00000000000000000000.log", "00000000.log", "00000000000000000000.index", "00000000000000000000.segment",
    "segment_00000000000000000000.log", "segment_00000000000000000000.idx", ".cleaner_checkpoint", "manifest.bin",
    "segments/00000000000000000000.log", "renamed", "",
)  # fmt: skip


class _Files:
    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def names(self) -> list[str]:
        return list(self._files)

    def read(self, name: str) -> bytes:
        return self._files[name]


def detect(data: bytes) -> None:
    """The first byte chooses the name; the others are the file's, alone and as half of a directory."""
    choice, content = (data[0] if data else 0), data[1:]
    name = NAMES[choice % len(NAMES)]
    with may_refuse():
        found = detect_file(name, content)
        assert found.why
        checks.dump(SLOTS if found.format == "fixed-slot" else make(found.format), found.role, content)
    for files in ({name: content}, {name: content, NAMES[choice // 16 % len(NAMES)]: content[::-1]}):
        with may_refuse():
            assert detect_directory("log", _Files(files)).format


def _detect_seeds() -> list[bytes]:
    found = seeds.golden("**/*.log", "**/*.idx", "**/*.index", "**/*.bin", "**/.cleaner_checkpoint")
    return [bytes([number % len(NAMES)]) + data[:300] for number, data in enumerate(found)]


# --- values

AMQP_DECODER = decoder("amqp", on_malformed="raw")


def amqp_messages(data: bytes) -> None:
    """Both halves of the kernel agree on the bytes, whole and cut in two; the columns are sound, and what is not
    decoded has a reason."""
    middle = len(data) // 2
    for parts in ([data], [data[:middle], data[middle:]]):
        starts, sizes = np.array([0, middle][: len(parts)], np.int64), np.array([*map(len, parts)], np.uint32)

        def make(starts: Any = starts, sizes: Any = sizes, rows: int = len(parts)) -> agreement.Call:
            spans = agreement.zeroed(AmqpSpans, rows * len(AmqpField))
            faults, positions = np.zeros(rows, np.uint32), np.zeros(rows, np.int64)
            args = (data, starts, sizes, spans, faults, positions)
            return args, {}, [*agreement.arrays_of(spans), faults, positions]

        agreement.both("scan_amqp", make)
        numbers = pa.array(range(len(parts)), pa.int64())
        values, malformed = AMQP_DECODER.decode(numbers, pa.array(parts, pa.binary()))
        values.validate(full=True)
        if [value.is_valid for value in values] != [not reason.is_valid for reason in malformed]:
            raise AssertionError("a value that does not decode has no reason, or one that decodes has one")
        values.to_pylist()


def amqp_seeds() -> list[bytes]:
    everything = amqp.list_of([encoded for encoded, _ in amqp.SCALARS.values()])
    pairs = amqp.map_of([(amqp.text(name), encoded) for name, (encoded, _) in amqp.SCALARS.items()])
    properties = amqp.list_of([amqp.text("id"), amqp.binary(b"guest"), amqp.text("to")])
    return [
        amqp.data(b"body"), amqp.section(0x77, everything), amqp.section(0x76, everything) * 2,
        amqp.section(0x70, amqp.list_of([b"\x41"])) + amqp.section(0x72, pairs) + amqp.section(0x73, properties)
        + amqp.section(0x74, pairs) + amqp.data(b"a" * 300) + amqp.data(b"b") + amqp.section(0x78, pairs),
    ]  # fmt: skip


TARGETS: dict[str, Target] = {
    "durable-log-segment": Target(segment(DURABLE), lambda: seeds.golden("durable-log/*/*.log"), mending.durable),
    "durable-log-index": Target(index(DURABLE), lambda: [small_index(DURABLE), *seeds.golden("durable-log/*/*.idx")]),
    "keratin-segment": Target(
        segment(KERATIN),
        lambda: seeds.golden("keratin/segments/*/*.log", "keratin/negative/*.log", "keratin/**/events/**/*.log"),
        mending.keratin_segment,
    ),
    "keratin-index": Target(
        index(KERATIN),
        lambda: [small_index(KERATIN, index_stride_bytes=40), *seeds.golden("keratin/segments/*/*.idx*")],
        mending.keratin_header,
    ),
    "keratin-time-index": Target(
        index(KERATIN, Role.TIME_INDEX),
        lambda: [
            small_index(KERATIN, Role.TIME_INDEX, index_stride_bytes=40),
            *seeds.golden("keratin/segments/*/*.tidx"),
        ],
        mending.keratin_header,
    ),
    "keratin-manifest": Target(manifest, lambda: seeds.golden("keratin/manifest/*/manifest.bin"), mending.manifest),
    "keratin-snap": Target(
        group_file(Role.GROUP_SNAPSHOT, "snap", snapshot_survives),
        lambda: seeds.golden("keratin/groups/*.snap", "keratin/**/*.snap"),
        mending.snapshot,
    ),
    "keratin-delta": Target(
        group_file(Role.GROUP_DELTA, "delta", delta_survives),
        lambda: seeds.golden("keratin/groups/*.delta", "keratin/groups/negative/*.delta"),
        mending.delta,
    ),
    "keratin-user-headers": Target(user_headers, seeds.user_headers),
    "rustlog-segment": Target(rustlog_both, lambda: seeds.golden("rustlog/*/*/*.log")),
    "rustlog-index": Target(
        index(RUSTLOG),
        lambda: [small_index(RUSTLOG, index_interval_records=3), *seeds.golden("rustlog/*/*/*.index")],
    ),
    "rustlog-checkpoint": Target(checkpoint, lambda: seeds.golden("rustlog/*/*/.cleaner_checkpoint")),
    "osiris-segment": Target(segment(OSIRIS), seeds.osiris_segments, mending.osiris),
    "osiris-index": Target(index(OSIRIS), lambda: [small_index(OSIRIS), *seeds.osiris_indexes()]),
    "osiris-sub-batch": Target(sub_batch, seeds.sub_batches),
    "osiris-tracking": Target(tracking, seeds.tracking),
    "fixed-slot-segment": Target(segment(SLOTS), lambda: seeds.golden("slot/rs16/*/*.log"), mending.slots),
    "kafka-segment": Target(kafka_segment, seeds.kafka_segments, mending.kafka),
    "kafka-state": Target(kafka_state, seeds.kafka_state, mending.kafka_snapshot),
    "detect": Target(detect, _detect_seeds),
    "kernel": Target(agreement.kernel, seeds.kernel),
    "amqp": Target(amqp_messages, amqp_seeds),
}
