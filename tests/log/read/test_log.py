"""`duramen.open(path, "r")` over all five formats."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from tests.log.conftest import START_US, batch, codec, options, value

Write = Callable[..., Path]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}


def index_files(root: Path) -> list[Path]:
    return [p for p in root.rglob("*") if p.suffix in (".idx", ".tidx", ".index")]


@pytest.fixture(params=["with index", "without index"])
def indexed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "with index")


def test_everything_is_read_and_nothing_is_written(write: Write, format_name: str, indexed: bool) -> None:
    root = write(format_name, 120, 130, 7)
    if not indexed:
        for path in index_files(root):
            path.unlink()
    before = snapshot(root)
    with duramen.open(root, **({} if format_name != "fixed-slot" else options(format_name))) as log:
        assert log.format == format_name
        assert (log.first_offset, log.next_offset) == (0, 257)
        records = list(log.scan())
        assert [r.offset for r in records] == list(range(257))
        assert [r.value for r in records] == [value(o) for o in range(257)]
        if log.codec.capabilities.timestamps:
            assert records[5].timestamp == EPOCH + timedelta(microseconds=START_US + 5000)
        else:
            assert records[5].timestamp is None
        if log.codec.capabilities.key:
            assert [r.key for r in records[:4]] == [None, b"k1", None, b"k0"]
        for offset in (0, 1, 119, 120, 121, 249, 250, 256):
            assert log.read(offset) == records[offset]
        table = pa.table(log)
        assert table.schema.names == ["offset", "timestamp", "key", "value", "headers"]
        assert table.column("value").to_pylist() == [r.value for r in records]
        assert len(log.segments) == (1 if format_name == "fixed-slot" else 3)
    assert snapshot(root) == before


@pytest.mark.parametrize("offset", [-1, 257, 10**12, 2**63, 2**70])
def test_an_offset_that_is_not_there(write: Write, format_name: str, offset: int) -> None:
    root = write(format_name, 120, 130, 7)
    with (
        duramen.open(root, format=format_name, **options(format_name)) as log,
        pytest.raises(duramen.OffsetError, match=r"no such record .*0 to 256") as caught,
    ):
        log.read(offset)
    assert caught.value.offset == offset


def test_bounds(write: Write, format_name: str) -> None:
    root = write(format_name, 120, 130, 7)
    with duramen.open(root, format=format_name, **options(format_name)) as log:

        def offsets(*args: int, **kwargs: object) -> list[int]:
            return [r.offset for r in log.scan(*args, **kwargs)]  # type: ignore[arg-type]

        assert offsets(118, 123) == [118, 119, 120, 121, 122]
        assert offsets(250) == list(range(250, 257))
        assert offsets(257) == []
        assert offsets(5, 5) == []
        assert offsets(100, max_records=3) == [100, 101, 102]
        assert offsets(119, max_records=3) == [119, 120, 121]
        assert offsets(0, max_bytes=3 * 16 + 1) == [0, 1, 2]
        assert offsets(0, max_bytes=1) == [0]
        narrow = pa.Table.from_batches(log.batches(3, 6, columns=("value", "offset")))
        assert narrow.schema.names == ["value", "offset"]
        assert narrow.column("offset").to_pylist() == [3, 4, 5]
        with pytest.raises(duramen.UsageError, match="no column 'nope'"):
            log.batches(columns=("nope",))


def test_times(write: Write, format_name: str, indexed: bool) -> None:
    root = write(format_name, 120, 130, 7)
    if not indexed:
        for path in index_files(root):
            path.unlink()
    with duramen.open(root, format=format_name, **options(format_name)) as log:
        if not log.codec.capabilities.timestamps:
            with pytest.raises(duramen.UsageError, match="no time"):
                log.offset_at(0)
            with pytest.raises(duramen.UsageError, match="no time"):
                log.scan(from_time=0).__next__()
            return
        start_ms = START_US // 1000
        assert log.offset_at(0) == 0
        assert log.offset_at(start_ms + 119) == 119
        assert log.offset_at(start_ms + 120) == 120
        assert log.offset_at(EPOCH + timedelta(microseconds=START_US + 250_500)) == 251
        assert log.offset_at(start_ms + 257) == 257
        found = [r.offset for r in log.scan(from_time=start_ms + 118, to_time=start_ms + 122)]
        assert found == [118, 119, 120, 121]


def test_an_index_that_lies_costs_time_but_never_a_record(write: Write, format_name: str) -> None:
    root = write(format_name, 300, 300)
    paths = index_files(root)
    if not paths:
        pytest.skip("the format has no index")
    for path in paths:
        raw = bytearray(path.read_bytes())
        for at in range(len(raw) // 3, len(raw)):
            raw[at] ^= 0x5A
        path.write_bytes(raw)
    with duramen.open(root, format=format_name) as log:
        assert [log.read(o).value for o in range(600)] == [value(o) for o in range(600)]
        assert [r.offset for r in log.scan(17, 580)] == list(range(17, 580))
        assert log.next_offset == 600


def test_an_index_of_another_segment(write: Write, format_name: str) -> None:
    root = write(format_name, 300, 300)
    paths = sorted(index_files(root))
    if len(paths) < 2:
        pytest.skip("the format has no index")
    first, last = paths[0], paths[-1]
    if first.suffix == last.suffix:
        last.write_bytes(first.read_bytes())
    with duramen.open(root, format=format_name) as log:
        assert [log.read(o).value for o in range(600)] == [value(o) for o in range(600)]


def test_a_log_cut_anywhere_reads_up_to_the_cut(write: Write, format_name: str) -> None:
    root = write(format_name, 4)
    with duramen.open(root, format=format_name, **options(format_name)) as log:
        path = Path(log.segments[-1].path)
    whole = path.read_bytes()
    seen = set()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with duramen.open(root, format=format_name, **options(format_name)) as log:
            try:
                records = [r.offset for r in log.scan()]
            except duramen.IncompleteHeaderError:
                records = []
            assert records == list(range(len(records)))
            seen.add(len(records))
    assert seen == ({0} if format_name == "osiris" else set(range(4))) or seen == set(range(4))


def test_damage_in_the_middle_is_raised_after_what_precedes_it(write: Write, format_name: str) -> None:
    root = write(format_name, 50)
    fmt = codec(format_name)
    if not fmt.capabilities.record_checksum:
        pytest.skip("the format has no checksum")
    with duramen.open(root, format=format_name, **options(format_name)) as log:
        path = Path(log.segments[0].path)
    raw = bytearray(path.read_bytes())
    at = raw.index(value(25))
    raw[at] ^= 1
    path.write_bytes(raw)
    with duramen.open(root, format=format_name, **options(format_name)) as log:
        seen = []
        with pytest.raises(duramen.CorruptionError) as caught:
            seen.extend(r.offset for r in log.scan())
        assert caught.value.path == str(path)
        assert caught.value.position is not None
        assert caught.value.position <= at
        good = []
        for batch_ in _until_error(log):
            good += batch_.column("offset").to_pylist()
        assert good == list(range(len(good)))
        assert good == list(range(caught.value.offset or 0))
        with pytest.raises(duramen.CorruptionError):
            log.read(25)


def _until_error(log: duramen.Log) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    with contextlib.suppress(duramen.CorruptionError):
        batches.extend(log.batches())
    return batches


def test_following_a_log_that_grows_and_rolls(write: Write, format_name: str) -> None:
    root = write(format_name, 10)
    fmt = codec(format_name)
    path = root / fmt.segment_path(0)

    def grow() -> None:
        with duramen.open(root, format=format_name, **options(format_name)) as log:
            end = log.end()
        from duramen.formats import ScanPosition

        more = bytes(fmt.encode(batch(fmt, 10, 5), ScanPosition(end.position, 9)).data)
        with path.open("ab") as file:
            for at in range(0, len(more), 7):
                file.write(more[at : at + 7])
                file.flush()
                time.sleep(0.001)
        if fmt.capabilities.segments:
            for relative, content in fmt.build([batch(fmt, 15, 5)]):
                if relative == fmt.segment_path(15):
                    (root / relative).write_bytes(content)

    thread = threading.Thread(target=grow)
    total = 20 if fmt.capabilities.segments else 15
    with duramen.open(root, format=format_name, **options(format_name)) as log:
        thread.start()
        found = [r.offset for r in log.scan(3, max_records=total - 3, follow=True)]
    thread.join()
    assert found == list(range(3, total))


def test_a_closed_log_says_so(write: Write) -> None:
    log = duramen.open(write("keratin", 3))
    log.close()
    with pytest.raises(duramen.UsageError, match="closed"):
        log.read(0)


@pytest.mark.parametrize("when", ["yesterday", 1.5, 2**70, -(2**62), [1]])
def test_what_is_no_time(write: Write, when: object) -> None:
    log = duramen.open(write("keratin", 3))
    for act in (log.offset_at, lambda time: log.scan(from_time=time), lambda time: log.batches(to_time=time)):
        with pytest.raises(duramen.UsageError, match=r"not a time|out of range"):
            act(when)  # type: ignore[arg-type]
    log.close()


def test_a_column_that_is_asked_for_twice(write: Write) -> None:
    with duramen.open(write("keratin", 3)) as log, pytest.raises(duramen.UsageError, match="twice: value, value"):
        log.batches(columns=["value", "value"])


def test_an_empty_log(write: Write, format_name: str, tmp_path: Path) -> None:
    root = tmp_path / "empty"
    fmt = codec(format_name)
    path = root / fmt.segment_path(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(fmt.segment_header(0, 0))
    with duramen.open(root, format=format_name, **options(format_name)) as log:
        assert (log.first_offset, log.next_offset) == (0, 0)
        assert list(log.scan()) == []
        assert pa.table(log).num_rows == 0
        with pytest.raises(duramen.OffsetError, match="empty"):
            log.read(0)


def test_missing_paths_and_wrong_kinds(tmp_path: Path) -> None:
    with pytest.raises(duramen.StorageError, match="no such file"):
        duramen.open(tmp_path / "nope")
    (tmp_path / "dir").mkdir()
    with pytest.raises(duramen.DetectionError, match="empty"):
        duramen.open(tmp_path / "dir")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(duramen.StorageError, match="regular file"):
        duramen.open(tmp_path / "fifo")
    with pytest.raises(duramen.UsageError, match="mode"):
        duramen.open(tmp_path / "dir", "w")


def test_a_log_whose_files_are_taken_away_ends_at_zero(write: Write, format_name: str) -> None:
    root = write(format_name, 3)
    with duramen.open(root) as log:
        for path in [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file()):
            path.unlink()
        assert log.next_offset == 0
