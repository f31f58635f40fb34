"""`duramen.verify` over all five formats: what it finds, where, and how bad it is."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import duramen
from duramen.formats import Role, ScanPosition, Severity
from tests.log.conftest import batch, codec, options, value

Write = Callable[..., Path]


def check(root: Path, name: str) -> duramen.Report:
    return duramen.verify(root, format=name, **options(name))


def codes(report: duramen.Report, least: Severity = Severity.NOTE) -> set[str]:
    order = list(Severity)
    return {f.code for f in report.findings if order.index(f.severity) >= order.index(least)}


def last_segment(root: Path, name: str) -> Path:
    with duramen.open(root, format=name, **options(name)) as log:
        return Path(log.segments[-1].path)


def test_a_clean_log_has_no_findings(write: Write, format_name: str) -> None:
    root = write(format_name, 120, 130, 7)
    report = check(root, format_name)
    assert report.findings == []
    assert report.ok
    assert report.records == 257
    assert report.bytes == sum(segment.size_bytes for segment in report.segments)
    assert report.format == format_name


@pytest.mark.parametrize("format_name", ["durable-log", "rustlog", "osiris", "kafka"])
def test_a_segment_under_the_name_of_earlier_offsets_is_found(write: Write, format_name: str) -> None:
    """Without a sidecar, nothing but the name says that the first records are missing. Keratin's file header names the
    offset, too."""
    root = write(format_name, 5, 5)
    fmt = codec(format_name)
    for role in (Role.SEGMENT, Role.INDEX, Role.TIME_INDEX):
        with contextlib.suppress(KeyError, FileNotFoundError):
            (root / fmt.path_of(role, 5)).replace(root / fmt.path_of(role, 0))
    report = check(root, format_name)
    found = next(finding for finding in report.findings if finding.code == "wrong-name")
    assert (found.path, found.first_offset, found.last_offset) == (str(root / fmt.path_of(Role.SEGMENT, 0)), 0, 4)


def test_every_cut_of_the_last_segment_is_a_torn_tail_and_no_damage(write: Write, format_name: str) -> None:
    root = write(format_name, 30, 3)
    path = last_segment(root, format_name)
    for role in (Role.INDEX, Role.TIME_INDEX):  # which would name the records that are missing
        if codec(format_name).capabilities.index and (role == Role.INDEX or format_name in ("keratin", "kafka")):
            (root / codec(format_name).path_of(role, int(path.stem.rpartition("_")[2]))).unlink()
    whole = path.read_bytes()
    clean_sizes = set()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        report = check(root, format_name)
        damage = codes(report, Severity.DAMAGE) - {"manifest-ahead", "emptied-segment"}
        assert not damage, (size, report.findings)
        if codes(report) & {"torn-tail", "torn-header"}:
            torn = next(f for f in report.findings if f.code in ("torn-tail", "torn-header"))
            assert torn.path == str(path)
            assert torn.position is not None
            assert torn.position <= size
        else:
            clean_sizes.add(size)
    assert clean_sizes, "some cuts lie on a boundary"
    assert len(clean_sizes) <= 35


def test_the_same_cut_in_a_sealed_segment_is_damage(write: Write, format_name: str) -> None:
    if not codec(format_name).capabilities.segments:
        pytest.skip("one file only")
    root = write(format_name, 30, 30)
    path = root / codec(format_name).segment_path(0)
    path.write_bytes(path.read_bytes()[:-3])
    report = check(root, format_name)
    assert not report.ok
    finding = next(f for f in report.findings if f.code == "damaged-records")
    assert finding.path == str(path)
    assert finding.first_offset is not None
    assert 0 <= finding.first_offset < 30


def test_a_flipped_payload_bit_in_the_middle_is_damage_and_the_rest_is_still_checked(
    write: Write, format_name: str
) -> None:
    if not codec(format_name).capabilities.record_checksum:
        pytest.skip("the format has no checksum")
    root = write(format_name, 50)
    path = last_segment(root, format_name)
    raw = bytearray(path.read_bytes())
    for offset in (10, 30):
        raw[raw.index(value(offset))] ^= 4
    path.write_bytes(raw)
    report = check(root, format_name)
    assert not report.ok
    found = [f for f in report.findings if f.severity == Severity.DAMAGE]
    if format_name == "osiris":
        assert {f.first_offset for f in found} <= {10, 30, 0}
    else:
        assert [(f.first_offset, f.last_offset) for f in found] == [(10, 10), (30, 30)]
        assert report.records == 48
    assert all(f.position is not None and f.action for f in found)


def test_zeros_after_the_records_are_a_clean_end(write: Write, format_name: str) -> None:
    root = write(format_name, 5)
    path = last_segment(root, format_name)
    with path.open("ab") as file:
        file.write(bytes(4096))
    report = check(root, format_name)
    assert report.ok
    assert codes(report) == {"zero-tail"}
    assert report.records == 5
    with duramen.open(root, format=format_name, **options(format_name)) as log:
        assert log.next_offset == 5


def test_derived_files_that_are_missing_or_alone(write: Write, format_name: str) -> None:
    fmt = codec(format_name)
    if not fmt.capabilities.index:
        pytest.skip("the format has no index")
    root = write(format_name, 300, 300, 300)
    (root / fmt.path_of(Role.INDEX, 0)).unlink()
    assert codes(check(root, format_name)) == {"missing-index"}
    (root / fmt.segment_path(300)).unlink()
    report = check(root, format_name)
    assert "orphaned-index" in codes(report)
    (root / fmt.segment_path(600)).unlink()  # which follows all segments: see test_lost_end
    if format_name != "keratin":  # its index has no entry for so few records
        assert "records-lost" in codes(check(root, format_name), Severity.DAMAGE)


def test_an_index_that_lies_is_named(write: Write, format_name: str) -> None:
    fmt = codec(format_name)
    if not fmt.capabilities.index:
        pytest.skip("the format has no index")
    root = write(format_name, 3000)
    path = root / fmt.path_of(Role.INDEX, 0)
    raw = bytearray(path.read_bytes())
    raw[-1 if format_name != "osiris" else -5] ^= 1
    if format_name == "keratin" and len(raw) == 72:
        pytest.fail("the log is too small to have an entry")
    path.write_bytes(raw)
    report = check(root, format_name)
    assert report.ok, "an index is derived: nothing is lost"
    finding = next(f for f in report.findings if "index" in f.code)
    assert finding.path == str(path)
    assert "reindex" in finding.action
    path.write_bytes(bytes(raw[:-1]))
    assert any("index" in code for code in codes(check(root, format_name)))


def test_a_lost_segment_shows(write: Write, format_name: str) -> None:
    fmt = codec(format_name)
    if not fmt.capabilities.segments:
        pytest.skip("one file only")
    root = write(format_name, 30, 30, 30)
    for role in (Role.SEGMENT, Role.INDEX, Role.TIME_INDEX):
        if role != Role.TIME_INDEX or format_name == "keratin":
            (root / fmt.path_of(role, 30)).unlink()
    report = check(root, format_name)
    finding = next(f for f in report.findings if f.code == "missing-segment")
    assert (finding.first_offset, finding.last_offset) == (30, 59)
    if fmt.capabilities.lost_segments_show or format_name == "keratin":
        assert not report.ok


def test_a_renamed_segment_shows(write: Write, format_name: str) -> None:
    fmt = codec(format_name)
    if not fmt.capabilities.segments:
        pytest.skip("one file only")
    root = write(format_name, 30)
    (root / fmt.segment_path(0)).rename(root / fmt.segment_path(7))
    report = check(root, format_name)
    assert not report.ok


def test_segments_that_overlap(write: Write, format_name: str) -> None:
    fmt = codec(format_name)
    if not fmt.capabilities.segments:
        pytest.skip("one file only")
    root = write(format_name, 30)
    for relative, content in fmt.build([batch(fmt, 20, 30)]):
        (root / relative).write_bytes(content)
    assert "overlapping-segments" in codes(check(root, format_name), Severity.DAMAGE)


def test_a_gap_inside_a_segment(write: Write, format_name: str) -> None:
    fmt = codec(format_name)
    if not fmt.capabilities.explicit_offsets:
        pytest.skip("offsets are arithmetic")
    root = write(format_name, 10)
    path = root / fmt.segment_path(0)
    end = check(root, format_name).segments[0].valid_bytes
    with path.open("ab") as file:
        file.write(fmt.encode(batch(fmt, 15, 5), ScanPosition(end, 14)).data)  # without a filler of Osiris
    report = check(root, format_name)
    finding = next(f for f in report.findings if f.code == "offset-gap")
    assert (finding.position, finding.first_offset, finding.last_offset) == (end, 10, 14)
    assert report.ok


def test_a_time_that_goes_backwards_is_a_warning_where_the_format_forbids_it(write: Write) -> None:
    root = write("rustlog", 10)
    path = root / codec("rustlog").segment_path(0)
    raw = bytearray(path.read_bytes())
    at = 5 * 36 + 12
    raw[at : at + 8] = (5).to_bytes(8, "big")
    path.write_bytes(raw)
    report = check(root, "rustlog")
    finding = next(f for f in report.findings if f.code == "time-goes-backwards")
    assert (finding.position, finding.first_offset, finding.severity) == (5 * 36, 5, Severity.WARNING)


def test_a_directory_without_segments_is_damage(write: Write, tmp_path: Path) -> None:
    root = write("keratin", 3)
    for path in (root / "segments").iterdir():
        path.unlink()
    report = check(root, "keratin")
    assert "no-segments" in codes(report, Severity.DAMAGE)


def test_leftovers_and_strays(write: Write) -> None:
    root = write("rustlog", 3)
    (root / "00000000000000000000.index.rebuilding").write_bytes(b"half")
    (root / "notes.txt~").write_bytes(b"mine")
    report = check(root, "rustlog")
    assert codes(report) == {"leftover"}
    assert report.ok


def test_a_report_and_its_errors_survive_pickling(write: Write) -> None:
    root = write("durable-log", 30)
    report = check(root, "durable-log")
    assert pickle.loads(pickle.dumps(report)) == report
    error = duramen.CorruptionError("bad", path="p", position=1, offset=2, hint="h")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.position, again.offset) == (str(error), 1, 2)
    refused = pickle.loads(pickle.dumps(duramen.StorageError("no", path="p")))
    assert str(refused) == "p: no"


@pytest.mark.parametrize("name", ["crash", "plain"])
def test_the_files_of_a_real_broker(osiris: Path, name: str) -> None:
    report = duramen.verify(osiris / name)
    assert report.ok
    if name == "plain":
        assert report.findings == []
    else:
        torn = next(f for f in report.findings if f.code == "torn-tail")
        assert torn.position == 32331
        assert torn.first_offset == 82996


# --- what only the sidecar knows


def appended(tmp_path: Path, name: str) -> Path:
    root = tmp_path / "appended"
    with duramen.open(root, "a", format=name, **options(name)) as log:
        log.append_batch([value(o) for o in range(20)])
        if log.codec.capabilities.segments:
            log.seal()
            log.append_batch([value(o) for o in range(20, 40)])
    assert check(root, name).findings == []
    return root


def test_a_changed_byte_of_a_sealed_segment_shows_even_without_a_checksum(tmp_path: Path, format_name: str) -> None:
    if not codec(format_name).capabilities.segments:
        pytest.skip("one file only")
    root = appended(tmp_path, format_name)
    path = root / codec(format_name).segment_path(0)
    raw = bytearray(path.read_bytes())
    raw[raw.index(value(7))] ^= 1
    path.write_bytes(raw)
    assert "digest-mismatch" in codes(check(root, format_name), Severity.DAMAGE)


def test_records_that_were_durable_and_are_cut_off_are_damage(tmp_path: Path, format_name: str) -> None:
    root = appended(tmp_path, format_name)
    path = last_segment(root, format_name)
    for size in (path.stat().st_size - 1, path.stat().st_size // 2):
        path.write_bytes(path.read_bytes()[:size])
        report = check(root, format_name)
        assert "durable-records-missing" in codes(report, Severity.DAMAGE)
        with pytest.raises(duramen.CorruptionError, match="watermark"):
            duramen.open(root, "a")


def test_a_missing_last_segment_shows(tmp_path: Path, format_name: str) -> None:
    if not codec(format_name).capabilities.segments:
        pytest.skip("one file only")
    root = appended(tmp_path, format_name)
    last_segment(root, format_name).unlink()
    assert "missing-segment" in codes(check(root, format_name), Severity.DAMAGE)
    with pytest.raises(duramen.CorruptionError, match="missing"):
        duramen.open(root, "a")


def test_damage_in_the_middle_is_reported_once(tmp_path: Path) -> None:
    """The bytes of a damaged record were once taken for durable ones that are missing at the end."""
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log") as log:
        log.append_batch([b"%03d" % number for number in range(100)])
        path = Path(log.segments[0].path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"050")] ^= 1
    path.write_bytes(raw)
    assert [finding.code for finding in duramen.verify(str(tmp_path / "log")).findings] == ["damaged-records"]


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris"])
def test_a_lost_oldest_segment_is_reported(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path / "log", "a", format=name) as log:
        for _ in range(4):
            log.append_batch([b"one", b"two"])
            log.seal()
        first = log.segments[0].path
        log.retain(duramen.Retention(before_offset=2))
        assert not duramen.verify(tmp_path / "log").findings
        second = log.segments[0].path
    assert first != second
    for path in (tmp_path / "log").rglob(Path(second).stem + ".*"):
        path.unlink()
    found = {one.code: one for one in duramen.verify(tmp_path / "log").findings}
    lost = found["oldest-missing"]
    assert (str(lost.severity), lost.first_offset, lost.last_offset) == ("warning", 2, 3)
    plan = duramen.repair(tmp_path / "log")
    assert plan.unexplained == [(2, 3)]
    duramen.repair(tmp_path / "log", plan_only=False)
    assert "oldest-missing" not in {one.code for one in duramen.verify(tmp_path / "log").findings}
