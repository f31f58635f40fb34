"""A Kafka segment field by field, for `dump`: every batch, every record, every control record."""

from __future__ import annotations

import json
from collections.abc import Iterator

from duramen import kernel
from duramen.errors import DuramenError
from duramen.formats.dump import first_shown, title, unreadable, zeros
from duramen.formats.index import Index, position_near
from duramen.formats.kafka.batch import (
    APPEND_TIME,
    CONTROL_KEY,
    CONTROL_VALUE,
    DELETE_HORIZON,
    HEADER,
    TRANSACTIONAL,
    UnfoldedRecords,
    is_control,
    unfold,
)
from duramen.formats.kafka.codec import MAX_UNCOMPRESSED_BYTES, KafkaCompression
from duramen.formats.kafka.internal import INTERNAL_TOPICS, decode_record
from duramen.formats.kafka.message_set import MESSAGE
from duramen.formats.kafka.segment import KafkaSegment, batches_of
from duramen.formats.kafka.state_files import PRODUCER, SNAPSHOT_HEADER, parse_snapshot
from duramen.formats.segment import ScanPosition
from duramen.formats.struct import Block, Field
from duramen.kernel import CODEC, CONTROL, NULL_LENGTH, BatchColumns, HeaderColumns, Stop

_CONTROL_TYPES = {0: "abort", 1: "commit", 2: "leader change", 3: "snapshot header", 4: "snapshot footer"}


def dump_batches(segment: KafkaSegment, begin: int = 0, index: Index | None = None, topic: str = "") -> Iterator[Block]:
    """Every batch of a segment from the byte ``begin`` on. Damage is a block with a problem; the dump continues with
    the next valid batch. The records of an internal ``topic`` are shown with their meaning."""
    near = position_near(segment, begin, index)
    cursor, number = (segment.start, 0) if near is None else (near, None)
    while True:
        rows = segment.scan(cursor)
        batches = batches_of(rows)
        for row in range(first_shown(rows, begin), len(batches)):
            name = title("batch", number, row, int(batches.position[row]))
            yield from _dump_batch(segment.buf, batches.slice(row, row + 1), name, topic)
        number = None if number is None else number + len(batches)
        cursor = rows.cursor
        if rows.stop == Stop.LIMIT:
            continue
        if rows.stop == Stop.END:
            return
        if rows.stop == Stop.ZEROS:
            yield zeros(len(segment.buf), cursor.position)
            return
        shown = title("batch", number, 0, cursor.position)
        if rows.stop == Stop.BAD_ORDER:
            cursor = cursor._replace(previous_offset=-1)
        found = segment.resync(cursor)
        readable = segment.buf[: found if found >= 0 else len(segment.buf)]
        fields = list(HEADER.fields(readable, cursor.position, _notes(readable, cursor.position)))
        yield unreadable(shown, readable, cursor.position, fields, rows.stop.meaning)
        if found < 0:
            return
        number = None
        cursor = ScanPosition(found, cursor.previous_offset)


def _notes(buf: memoryview, position: int) -> dict[str, str]:
    at = position + HEADER.at("attributes")
    if at + 2 > len(buf):
        return {}
    return {"attributes": _attributes(int.from_bytes(buf[at : at + 2], "big"), 2)}


def _attributes(attributes: int, magic: int) -> str:
    codec = attributes & CODEC
    is_known = codec in KafkaCompression.__members__.values()
    names = [KafkaCompression(codec).name.lower() if is_known else f"codec {codec}"]
    if magic > 0:
        names.append("LogAppendTime" if attributes & APPEND_TIME else "CreateTime")
    bits = {TRANSACTIONAL: "transactional", CONTROL: "control", DELETE_HORIZON: "base_timestamp is a delete horizon"}
    if magic == 2:
        names += [text for bit, text in bits.items() if attributes & bit]
    return ", ".join(names)


def _dump_batch(buf: memoryview, batch: BatchColumns, name: str, topic: str) -> Iterator[Block]:
    position, magic = int(batch.position[0]), int(batch.magic[0])
    attributes = int(batch.attributes[0])
    head = HEADER if magic == 2 else MESSAGE[magic]
    fields = list(head.fields(buf, position, {"attributes": _attributes(attributes, magic)}))
    is_compressed = bool(attributes & CODEC)
    if is_compressed:
        start, length = int(batch.data_position[0]), int(batch.data_length[0])
        fields.append(Field("compressed", start, length, bytes(buf[start : start + length])))
    try:
        records = unfold(buf, batch, MAX_UNCOMPRESSED_BYTES)
    except DuramenError as error:
        yield Block(name, position, fields, error.message)
        return
    yield Block(name, position, fields)
    for row in range(len(records.columns)):
        block, key, value = _dump_record(buf, batch, records, row, f"{name}.record{row}")
        if topic in INTERNAL_TOPICS and not is_control(batch)[0]:
            block = _with_meaning(block, topic, key, value)
        yield block


def _dump_record(
    buf: memoryview, batch: BatchColumns, records: UnfoldedRecords, row: int, name: str
) -> tuple[Block, bytes | None, bytes | None]:
    """One record, and its key and value. Its fields have positions in the file, unless it was compressed: then all are
    at the batch's data."""
    columns, in_plain = records.columns, bool(records.in_plain[row])
    source = memoryview(records.plain) if in_plain else buf
    fixed = int(batch.data_position[0])

    def place(position: int, length: int) -> tuple[int, int]:
        return (fixed, 0) if in_plain else (position, length)

    def bytes_field(label: str, position: int, length: int) -> Field:
        if length == NULL_LENGTH:
            return Field(label, *place(position, 0), "null")
        return Field(label, *place(position, length), bytes(source[position : position + length]))

    start = int(columns.position[row])
    fields = [
        Field("offset", *place(start, 0), int(columns.offset[row])),
        Field("timestamp", *place(start, 0), int(columns.timestamp[row])),
    ]
    key = int(columns.key_position[row]), int(columns.key_length[row])
    value = int(columns.value_position[row]), int(columns.value_length[row])
    fields += [bytes_field("key", *key), bytes_field("value", *value)]
    if is_control(batch)[0]:
        fields += _control_fields(source, key, value, place(*key)[0])
    for number, pairs in enumerate(_headers(source, records, row)):
        fields += [bytes_field(f"header{number}.key", *pairs[:2]), bytes_field(f"header{number}.value", *pairs[2:])]
    contents = [field.value if isinstance(field.value, bytes) else None for field in fields[2:4]]
    return Block(name, fields[0].position, fields), contents[0], contents[1]


def _with_meaning(block: Block, topic: str, key: bytes | None, value: bytes | None) -> Block:
    """The block with what its record means to Kafka."""
    at = block.position
    try:
        record = decode_record(topic, key, value)
    except DuramenError as error:
        return block._replace(fields=[*block.fields, Field("record", at, 0, "not decoded", error.message)])
    version = "" if record.version is None else f"version {record.version}"
    fields = [*block.fields, Field("record", at, 0, record.kind, "; ".join(filter(None, (version, record.note))))]
    for part, content in (("key", record.key), ("value", record.value or {})):
        fields += [Field(f"{part}.{name}", at, 0, _shown(found)) for name, found in content.items()]
    return block._replace(fields=fields)


def _shown(value: object) -> int | bytes | str:
    if isinstance(value, int | bytes | str) and not isinstance(value, bool):
        return value
    return json.dumps(value, ensure_ascii=False, default=bytes.hex)


def _headers(source: memoryview, records: UnfoldedRecords, row: int) -> Iterator[tuple[int, int, int, int]]:
    columns = records.columns
    count = int(columns.headers[row])
    found = HeaderColumns.empty(count)
    kernel.scan_headers(source, columns.headers_position[row : row + 1], columns.headers[row : row + 1], found)
    for n in range(count):
        yield (
            int(found.key_position[n]), int(found.key_length[n]), int(found.value_position[n]),
            int(found.value_length[n]),
        )  # fmt: skip


def _control_fields(source: memoryview, key: tuple[int, int], value: tuple[int, int], at: int) -> Iterator[Field]:
    """What the key and the value of a control record say."""
    if key[1] != NULL_LENGTH and key[1] >= CONTROL_KEY.size:
        kind = int(CONTROL_KEY.unpack(source, key[0])["type"])
        yield Field("control_type", at, 0, kind, _CONTROL_TYPES.get(kind, "unknown"))
        if kind in (0, 1) and value[1] != NULL_LENGTH and value[1] >= CONTROL_VALUE.size:
            epoch = CONTROL_VALUE.unpack(source, value[0])["coordinator_epoch"]
            yield Field("coordinator_epoch", at, 0, epoch)


def dump_snapshot(view: memoryview) -> Iterator[Block]:
    """A producer snapshot: its header, and every producer."""
    problem = None
    try:
        parse_snapshot(view)
    except DuramenError as error:
        problem = error.message
    yield Block("header", 0, list(SNAPSHOT_HEADER.fields(view, 0)), problem)
    for number, at in enumerate(range(SNAPSHOT_HEADER.size, len(view) - PRODUCER.size + 1, PRODUCER.size)):
        yield Block(f"producer{number}", at, list(PRODUCER.fields(view, at)))


def dump_text(view: memoryview) -> Iterator[Block]:
    """A text file, line by line."""
    at = 0
    for number, line in enumerate(bytes(view).splitlines(keepends=True)):
        yield Block(f"line{number}", at, [Field("text", at, len(line), line.decode("utf-8", "replace").rstrip("\r\n"))])
        at += len(line)
