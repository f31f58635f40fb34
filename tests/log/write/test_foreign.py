"""Appending to logs that other programs wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import duramen
from duramen.formats import make
from tests.damage.logs import batch
from tests.log.conftest import value
from tests.log.writing import START_MS, codes, content, sizes, snapshot, values

# --- logs of other programs


def test_osiris_goes_on_in_the_dialect_found(root: Path, osiris: Path) -> None:
    for name in ("plain", "dedup", "tracked", "retention", "subbatch", "golden_1_3_1", "crash"):
        root.mkdir()
        for path in (osiris / name).iterdir():
            if path.suffix in (".segment", ".index"):
                shutil.copy(path, root)
        with duramen.open(root) as log:
            before = list(log.scan())
            old = log.codec.describe({p.name: p.read_bytes() for p in root.iterdir() if p.is_file()})
        sealed = snapshot(root)
        with duramen.open(root, "a", segment_max_bytes=2000) as log:
            assert log.codec.options["chunk_version"] == 0
            assert log.codec.options["epoch"] == old["epoch"]
            given = [log.append(b"%d" % number) for number in range(10)]
            assert given[0] in (before[-1].offset + 1, before[-1].offset + 2), "a snapshot of the tracking takes one"
            log.append_batch([b"b" * 50] * 50)
            log.seal()
            log.append(b"last")
            assert len(log.segments) >= 2
            last = max(p.name for p in root.iterdir() if p.suffix == ".segment")
            new = log.codec.describe({p.name: p.read_bytes() for p in root.iterdir() if p.is_file()})
        assert new["epoch"] == old["epoch"], name
        first = before[0]
        assert first.timestamp is not None
        held = old["tracking"]
        held["offsets"] = {key: offset for key, offset in held["offsets"].items() if offset >= first.offset}
        first_ms = int(first.timestamp.timestamp() * 1000)
        held["timestamps"] = {key: ms for key, ms in held["timestamps"].items() if ms >= first_ms}
        assert new["tracking"] == held, "the snapshot at the start of a segment holds all that is not before the log"
        with duramen.open(root) as log:
            records = list(log.scan())
        assert records[: len(before)] == before
        appended = [record.value for record in records[len(before) :]]
        assert appended == [*(b"%d" % n for n in range(10)), *[b"b" * 50] * 50, b"last"]
        assert [record.offset for record in records[len(before) :]][:10] == given
        data = (root / last).read_bytes()
        assert data[8] == 0x50, "chunk version 0"
        for path, raw in sealed.items():
            assert (root / path).read_bytes().startswith(raw) or name == "crash", f"{name}: {path} was changed"
        assert codes(root) == []
        shutil.rmtree(root)


@pytest.mark.parametrize("which", ["three", "records250"])
@pytest.mark.parametrize(("dialect", "header_bytes"), [("impl", 12), ("spec", 20)])
def test_rustlog_goes_on_in_the_dialect_found(
    root: Path, golden: Path, which: str, dialect: str, header_bytes: int
) -> None:
    shutil.copytree(golden / "rustlog" / dialect / which, root)
    before = content(root)
    with duramen.open(root, "a") as log:
        assert log.codec.options["header_bytes"] == header_bytes
        size = sum(sizes(root, "rustlog"))
        assert log.append(b"n" * 10) == len(before)
        assert sum(sizes(root, "rustlog")) == size + header_bytes + 10
        log.seal()
        log.append_batch([b"m"] * 3)
        if header_bytes == 12:
            assert log.read(len(before)).timestamp is None
            with pytest.raises(duramen.UnsupportedFieldError, match="timestamp"):
                log.append(b"x", timestamp=START_MS)
        else:
            assert log.read(len(before)).timestamp is not None
    assert content(root) == [*before, b"n" * 10, *[b"m"] * 3]
    assert codes(root) == []


@pytest.mark.parametrize(
    ("which", "manifest"),
    [("three", None), ("three_hdr", "spec_fresh"), ("three", "impl_v1"), ("three", "impl_v2"), ("three", "impl_v3")],
)
def test_keratin_goes_on(root: Path, golden: Path, which: str, manifest: str | None) -> None:
    (root / "segments").mkdir(parents=True)
    for path in (golden / "keratin/segments" / which).iterdir():
        if path.suffix in (".log", ".idx", ".tidx"):
            shutil.copy(path, root / "segments")
    if manifest:
        shutil.copy(golden / "keratin/manifest" / manifest / "manifest.bin", root)
    with duramen.open(root) as log:
        before = list(log.scan())
    with duramen.open(root, "a") as log:
        first = log.append(b"new", key=b"k", headers=[("h", b"v")])
        log.seal()
        log.append(b"newer")
    with duramen.open(root) as log:
        records = list(log.scan())
    assert records[: len(before)] == before
    assert [record.offset for record in records[len(before) :]] == [first, first + 1]
    assert (records[-2].key, records[-2].headers, records[-1].value) == (b"k", [("h", b"v")], b"newer")
    assert codes(root) == []


def test_a_manifest_keeps_where_segments_end_before_a_gap(root: Path) -> None:
    """The next segment's name does not say it: Keratin's own compaction leaves offsets out."""
    fmt = make("keratin")
    batches = [batch(fmt, 0, 4), batch(fmt, 7, 6), batch(fmt, 13, 8)]
    for name, data in fmt.build(batches, START_MS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    before = codes(root)
    for _ in range(2):  # the second time, what the first one wrote is read
        with duramen.open(root, "a") as log:
            log.append(b"new")
        assert codes(root) == before
    listed = fmt.describe({"manifest.bin": (root / "manifest.bin").read_bytes()})["manifest"]["segments"]
    assert [(entry["base_offset"], entry["last_offset"]) for entry in listed] == [(0, 3), (7, 12)]


@pytest.mark.parametrize("which", ["three", "three_base7", "empty"])
def test_durable_log_goes_on(root: Path, golden: Path, which: str) -> None:
    shutil.copytree(golden / "durable-log" / which, root)
    with duramen.open(root) as log:
        before = list(log.scan())
    with duramen.open(root, "a") as log:
        first = log.append(b"new")
        assert first == (before[-1].offset + 1 if before else 0)
        log.seal()
        log.append(b"newer")
    with duramen.open(root) as log:
        records = list(log.scan())
    assert records[: len(before)] == before
    assert [record.value for record in records[len(before) :]] == [b"new", b"newer"]
    assert codes(root) == []


def test_fixed_slot_goes_on(root: Path, golden: Path) -> None:
    shutil.copytree(golden / "slot/rs16/three", root)
    with pytest.raises(duramen.UsageError, match="record_size=16"):
        duramen.open(root, "a")
    with duramen.open(root, "a", record_size=16) as log:
        assert log.append(value(3)) == 3
    assert content(root)[3:] == values(3, 1)
    assert codes(root) == []
