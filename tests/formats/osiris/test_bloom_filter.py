"""Bloom filters of chunks: the bits that Erlang's hash gives, and where they lie in a chunk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import UsageError
from duramen.formats import ScanPosition, make
from duramen.formats.osiris.bloom_filter import bits_of, bloom_filter, hash_binary, hash_listed
from duramen.formats.osiris.chunk import parse_chunk
from duramen.sidecar.layout import read_config

ERLANG = {
    b"": (147926629, 440873397),
    b"a": (1589197455, 3543352798),
    b"abc": (1306188027, 3553186069),
    b"region-eu": (1366618927, 476000350),
    b"x" * 12: (1311754689, 2311696791),
    b"y" * 13: (4019822669, 2549316315),
    b"<4LA": (4285205978, 2324161566),
}
"""What erlang:phash2(V, 1 bsl 32) and erlang:phash2([V], 1 bsl 32) return."""


@pytest.mark.parametrize("value", ERLANG)
def test_the_hashes_are_erlangs(value: bytes) -> None:
    assert (hash_binary(value), hash_listed(value)) == ERLANG[value]


def test_the_bits_of_a_filter() -> None:
    assert bits_of(b"abc", 16) == (1306188027 % 127 + 1, 3553186069 % 127 + 1)
    assert bits_of(b"", 16) == (0, 0)
    assert bloom_filter([], 16) == bloom_filter([None, b""], 16) == b""
    one = bloom_filter([b"abc", b"abc"], 255)
    assert len(one) == 255
    assert {place for place in range(2040) if one[place // 8] & 0x80 >> place % 8} == set(bits_of(b"abc", 255))
    mixed = bloom_filter([b"abc", None], 16)
    assert mixed[0] & 0x80, "bit 0: a record without a filter value"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_chunks_with_filters(compression: str) -> None:
    fmt = make("osiris", filter_by="delimiter:/", compression=compression, chunk_max_records=2, dialect="program")
    values = [b"eu/1", b"us/2", b"eu/3", b"eu/4", b"none", b"nothing"]
    batch = pa.RecordBatch.from_pydict({"offset": [0, 1, 2, 3, 9, 10], "value": values})
    encoded = fmt.encode(batch, ScanPosition(8, -1))
    data, position, found = bytes(encoded.data), 0, []
    while position < len(data):
        chunk, position = parse_chunk(data, position)
        found.append(chunk.filter)
    assert found == [bloom_filter([b"eu", b"us"], 16), bloom_filter([b"eu"], 16), b"", b""], "the third is a filler"
    segment = fmt.open_segment(b"OSIL\0\0\0\1" + data, 0)
    rows = segment.scan(segment.start)
    assert rows.columns.position.tolist() == encoded.rows.columns.position.tolist()
    assert rows.columns.data_position.tolist() == encoded.rows.columns.data_position.tolist()  # type: ignore[attr-defined]
    assert segment.decode(rows, ["value"]).column(0).to_pylist() == values


def test_a_log_with_filters(tmp_path: Path) -> None:
    root = tmp_path / "log"
    options = {"format": "osiris", "dialect": "program"}

    def region(value: bytes) -> bytes | None:
        return value[:2] if value[:1] != b"-" else None

    with duramen.open(root, "a", filter_by=region, filter_bytes=32, **options) as log:
        log.append(b"eu one")
        log.append_batch([b"us two", b"- three"])
        producer = log.producer("p")
        producer.append(b"eu four", sequence=7)
    data = (root / f"{0:020}.segment").read_bytes()
    filters, position = [], 8
    while position < len(data):
        chunk, position = parse_chunk(data, position)
        filters.append(chunk.filter)
    wanted = [[b"eu"], [b"us", None], [b"eu"]]
    assert filters == [bloom_filter(values, 32) for values in wanted]
    assert duramen.verify(root).findings == []
    config = read_config(PosixDisk(), str(root))
    assert config is not None
    assert config.options["filter_bytes"] == 32
    assert "filter_by" not in config.options, "a function cannot be stored"
    with duramen.open(root, "a") as log, pytest.raises(UsageError, match="filter_by is missing"):
        log.append(b"without it consumers would miss the chunk")
    with duramen.open(root, "a", filter_bytes=0) as log:
        log.append(b"told to go without")
    assert duramen.verify(root).findings == []


def test_a_filter_value_that_a_text_names_is_remembered(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format="osiris", filter_by="json:a.b") as log:
        log.append(b'{"a": {"b": "eu"}}')
    with duramen.open(root, "a") as log:
        log.append(b'{"a": {"b": 7}}')
    data = (root / f"{0:020}.segment").read_bytes()
    first, position = parse_chunk(data, 8)
    second, _ = parse_chunk(data, position)
    assert (first.filter, second.filter) == (bloom_filter([b"eu"], 16), bloom_filter([b"7"], 16))


def test_options_that_make_no_filter() -> None:
    for size in (1, 15, 256, -1):
        with pytest.raises(UsageError, match="filter_bytes"):
            make("osiris", filter_bytes=size)
    with pytest.raises(UsageError, match="what a record"):
        make("osiris", filter_by="what?")
