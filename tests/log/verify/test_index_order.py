"""An index whose offsets repeat or go backwards is never followed: the records themselves decide."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import duramen
from duramen.errors import CorruptionError
from duramen.formats import Role, make
from duramen.log.read.mapped_segment import Ordered

FIRST, SECOND = 50, 30


def restarted(root: Path) -> list[bytes]:
    """What RustLog's own program leaves after a restart: offsets, and the index's, begin at the base again."""
    values = [b"%03d " % number + bytes(400 + number % 3) for number in range(FIRST + SECOND)]
    offsets = [*range(FIRST), *range(SECOND)]
    records = [struct.pack(">IQ", len(value), offset) + value for offset, value in zip(offsets, values, strict=True)]
    root.mkdir()
    (root / f"{0:020}.log").write_bytes(b"".join(records))
    again = sum(map(len, records[:FIRST]))
    (root / f"{0:020}.index").write_bytes(struct.pack(">QQQQ", 0, 0, 0, again))
    return values


def test_a_restart_of_rustlog_hides_no_record(tmp_path: Path) -> None:
    values = restarted(tmp_path / "log")
    with duramen.open(tmp_path / "log") as log:
        found: list[bytes | None] = []
        with pytest.raises(CorruptionError, match="the offset repeats") as caught:
            found.extend(record.value for record in log.scan(0))
        assert found == values[:FIRST]
        assert caught.value.offset == FIRST
        assert log.read(3).value == values[3]
        assert log.next_offset == FIRST


def test_the_repeated_offsets_of_rustlog_are_reported_and_kept(tmp_path: Path) -> None:
    restarted(tmp_path / "log")
    before = {file.name: file.read_bytes() for file in (tmp_path / "log").iterdir()}
    report = duramen.verify(tmp_path / "log")
    (found,) = [finding for finding in report.findings if finding.code == "repeated-offset"]
    assert f"{SECOND} whole records there, with offsets from 0 to {SECOND - 1}" in found.message
    assert not report.ok
    with pytest.raises(CorruptionError, match="the offset repeats"):
        duramen.open(tmp_path / "log", "a")
    assert {name: (tmp_path / "log" / name).read_bytes() for name in before} == before
    assert [file.name for file in (tmp_path / "log" / ".duramen").glob("*") if file.name != "lock"] == []


def test_of_several_restarts_all_records_are_counted(tmp_path: Path) -> None:
    restarted(tmp_path / "log")
    file = tmp_path / "log" / f"{0:020}.log"
    more = [struct.pack(">IQ", 1, offset) + b"x" for offset in range(7)]
    file.write_bytes(file.read_bytes() + b"".join(more) + b"".join(more))
    (found,) = [f for f in duramen.verify(tmp_path / "log").findings if f.code == "repeated-offset"]
    assert f"{SECOND + 14} whole records there, with offsets from 0 to {SECOND - 1}" in found.message


def spliced(root: Path) -> None:
    """Records 100 to 199 before 0 to 99, and an index that says so."""
    whole = root.with_name("whole")
    with duramen.open(whole, "a", format="keratin", index_stride_bytes=1) as log:
        log.append_batch([b"%03d" % number for number in range(200)])
        at = log.locate(100).position
    raw = (whole / "segments" / f"{0:020}.log").read_bytes()
    start = make("keratin").open_segment(raw, 0).start.position
    (root / "segments").mkdir(parents=True)
    data = raw[:start] + raw[at:] + raw[start:at]
    (root / "segments" / f"{0:020}.log").write_bytes(data)
    index = (whole / "segments" / f"{0:020}.idx").read_bytes()
    head, entries = index[:72], [index[at : at + 16] for at in range(72, len(index), 16)]
    moved = [struct.pack("<IIQ", o, f, p - at + start) for o, f, p in map(_entry, entries) if o >= 100]
    moved += [struct.pack("<IIQ", o, f, p + len(raw) - at) for o, f, p in map(_entry, entries) if o < 100]
    (root / "segments" / f"{0:020}.idx").write_bytes(head + b"".join(moved))


def _entry(raw: bytes) -> tuple[int, int, int]:
    offset, flags, position = struct.unpack("<IIQ", raw)
    return offset, flags, position


def test_a_spliced_keratin_log_gives_its_records(tmp_path: Path) -> None:
    spliced(tmp_path / "log")
    with duramen.open(tmp_path / "log") as log:
        found: list[int] = []
        with pytest.raises(CorruptionError):
            found.extend(record.offset for record in log.scan(100))
        assert found == list(range(100, 200))


def test_of_an_index_that_grows_the_new_entries_are_read_and_of_another_one_all() -> None:
    ordered, fmt = Ordered(), make("rustlog")

    def index(*offsets: int) -> bytes:
        return b"".join(struct.pack(">QQ", offset, 10 * number) for number, offset in enumerate(offsets))

    def check(*offsets: int) -> bool:
        opened = fmt.open_index(Role.INDEX, index(*offsets), 0)
        assert opened is not None
        return ordered.check("name", opened)

    assert check()
    assert check(0, 1, 2)
    assert check(1, 0, 2, 3), "what was in order is not read again while its last entry is the same"
    assert not check(0, 1, 2, 3, 3)
    assert check(0, 1)
    assert not check(0, 0, 1)
    assert not check(5, 4, 6, 7)
