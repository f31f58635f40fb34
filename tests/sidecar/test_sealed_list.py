"""The list of sealed segments: its last line stands for all where the directory agrees, and only there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import duramen
from duramen import kernel
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError
from duramen.log import Retention
from duramen.sidecar import SealedList, SealedSum, Sidecar

FORMATS = ("durable-log", "keratin", "rustlog", "osiris")


def fill(root: Path, format_name: str = "durable-log", segments: int = 5) -> list[Path]:
    """A log of so many sealed segments; the paths of those, in order."""
    with duramen.open(root, "a", format=format_name) as log:
        for number in range(segments):
            log.append_batch([b"value %d" % number] * (number + 1))
            log.seal()
        return [Path(segment.path) for segment in log.segments[:-1]]


def lines(root: Path) -> list[bytes]:
    return (root / ".duramen" / "sealed.jsonl").read_bytes().splitlines(keepends=True)


def rewrite(root: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Every line changed, and its checksum made right again."""
    changed = []
    for line in lines(root):
        tree = json.loads(line[: line.rindex(b" ")])
        change(tree)
        body = json.dumps(tree).encode()
        changed.append(body + b" %08x\n" % kernel.crc32c(body))
    (root / ".duramen" / "sealed.jsonl").write_bytes(b"".join(changed))


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_last_line_stands_for_all(tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, format_name)

    def read(_list: SealedList) -> None:
        raise AssertionError("the whole list was read")

    monkeypatch.setattr(SealedList, "_read", read)
    with duramen.open(tmp_path, "a") as log:
        assert log.append(b"more") == 15
        log.seal()
        assert log.append(b"and more") == 16
    with duramen.open(tmp_path, "a") as log:
        assert log.next_offset == 17
        assert len(log.segments) == 7


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("what", ["missing", "longer", "shorter"])
def test_every_segment_counts(tmp_path: Path, which: int, what: str) -> None:
    path = fill(tmp_path)[which]
    if what == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content + b"\0" if what == "longer" else content[:-1])
    if what == "missing" and which == 0:  # what is gone at the beginning was removed on purpose
        with duramen.open(tmp_path, "a") as log:
            assert log.append(b"more") == 15
        return
    with pytest.raises(CorruptionError) as caught:
        duramen.open(tmp_path, "a")
    assert str(path) in str(caught.value)


def test_two_sizes_that_are_swapped_show(tmp_path: Path) -> None:
    first, second, *_ = fill(tmp_path)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with pytest.raises(CorruptionError):
        duramen.open(tmp_path, "a")


def test_a_list_of_an_earlier_version_is_read_and_continued(tmp_path: Path) -> None:
    paths = fill(tmp_path)
    rewrite(tmp_path, lambda tree: [tree.pop(name) for name in ("sum", "sealed_ms", "indexes")])
    assert Sidecar(PosixDisk(), str(tmp_path)).last_sealed() is None
    with duramen.open(tmp_path, "a") as log:
        log.append(b"more")
        log.seal()
    found = Sidecar(PosixDisk(), str(tmp_path)).last_sealed()
    assert found is not None
    assert found[1].count == 6
    bases = [entry.base for entry in Sidecar(PosixDisk(), str(tmp_path)).sealed().values()]
    sizes = [path.stat().st_size for path in paths]
    known = SealedSum().plus([*bases[:-1], found[0].base], [*sizes, found[0].size_bytes], [None] * 6)
    assert known == found[1]
    assert found[1].indexes is None, "the sizes of the first five indexes are unknown"


@pytest.mark.parametrize("left_bytes", [0, 1, 40, -1])
def test_a_torn_last_line_is_written_over(tmp_path: Path, left_bytes: int) -> None:
    """As a crash leaves it between the end of a segment and the beginning of the next."""
    fill(tmp_path)
    *whole, last = lines(tmp_path)
    (tmp_path / ".duramen" / "sealed.jsonl").write_bytes(b"".join(whole) + last[:left_bytes])
    with duramen.open(tmp_path, "a") as log:
        log.append(b"more")
        log.seal()
        assert log.next_offset == 16
    assert lines(tmp_path)[: len(whole)] == whole
    assert list(Sidecar(PosixDisk(), str(tmp_path)).sealed()) == [0, 1, 3, 6, 15]
    assert duramen.verify(tmp_path).ok


def test_a_damaged_line_among_others_does_not_matter_where_the_directory_agrees(tmp_path: Path) -> None:
    fill(tmp_path)
    content = bytearray(b"".join(lines(tmp_path)))
    content[10] ^= 1
    (tmp_path / ".duramen" / "sealed.jsonl").write_bytes(content)
    with duramen.open(tmp_path, "a") as log:
        assert log.append(b"more") == 15


@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
def test_a_manifest_that_does_not_fit_is_rebuilt(tmp_path: Path, damage: str) -> None:
    fill(tmp_path, "keratin")
    manifest = tmp_path / "manifest.bin"
    content = manifest.read_bytes()
    if damage == "gone":
        manifest.unlink()
    else:
        manifest.write_bytes(content[:-1] if damage == "cut" else content[:-9] + b"\xff" + content[-8:])
    with duramen.open(tmp_path, "a"):
        assert manifest.read_bytes() == content


def damage_list(root: Path, which: int, how: str) -> None:
    found = lines(root)
    changed = bytearray(found[which])
    changed[20] ^= 1
    found[which : which + 1] = [bytes(changed)] if how == "flipped" else []
    (root / ".duramen" / "sealed.jsonl").write_bytes(b"".join(found))


@pytest.mark.parametrize(
    ("which", "how"), [(0, "flipped"), (2, "flipped"), (4, "flipped"), (0, "removed"), (2, "removed")]
)
def test_a_damaged_line_hides_no_other_one(tmp_path: Path, which: int, how: str) -> None:
    """A segment whose own checksums miss a flipped bit: only its digest shows it."""
    segments = fill(tmp_path, "rustlog")
    damage_list(tmp_path, which, how)
    found = [(finding.code, finding.severity) for finding in duramen.verify(tmp_path).findings]
    assert found == [("bad-sidecar", "warning")]
    other = segments[3]
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    assert "digest-mismatch" in {finding.code for finding in duramen.verify(tmp_path).findings}


@pytest.mark.parametrize("which", [0, 4])
@pytest.mark.parametrize("verb", ["seal", "retain", "reindex", "repair"])
def test_a_damaged_list_is_never_written_over_without_a_copy(tmp_path: Path, which: int, verb: str) -> None:
    fill(tmp_path, "keratin")
    damage_list(tmp_path, which, "flipped")
    before = (tmp_path / ".duramen" / "sealed.jsonl").read_bytes()
    if verb == "repair":
        assert duramen.repair(tmp_path, plan_only=False).applied
    elif verb == "reindex":
        (tmp_path / "segments" / "00000000000000000001.idx").unlink()
        with duramen.open(tmp_path, "a", index_stride_bytes=1):
            pass
    else:
        with duramen.open(tmp_path, "a") as log:
            log.append(b"more")
            log.seal()
            if verb == "retain":
                before = (tmp_path / ".duramen" / "sealed.jsonl").read_bytes()
                log.retain(Retention(max_bytes=1))
    report = duramen.verify(tmp_path)
    copies = [path.read_bytes() for path in (tmp_path / ".duramen" / "quarantine").rglob("*") if path.is_file()]
    kept = (tmp_path / ".duramen" / "sealed.jsonl").read_bytes().startswith(before)
    assert report.ok
    assert kept or before in copies
    is_reported = "bad-sidecar" in {finding.code for finding in report.findings}
    assert is_reported == kept, "the damage is reported as long as it is there"


def test_a_crash_tears_the_last_line(tmp_path: Path) -> None:
    """The end of the line reached the disk and its beginning did not: recovery moves it to the quarantine."""
    log = duramen.open(tmp_path, "a", format="keratin")
    for _ in range(2):
        log.append(b"value")
        log.seal()
    log.append(b"value")
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path, crashed, ignore=shutil.ignore_patterns("crashed"))
    log.close()
    path = crashed / ".duramen" / "sealed.jsonl"
    torn = path.read_bytes() + bytes(100) + b" 1a2b3c4d\n"
    path.write_bytes(torn)
    with duramen.open(crashed, "a") as again:
        again.seal()
    assert duramen.verify(crashed).findings == []
    assert torn in [copy.read_bytes() for copy in (crashed / ".duramen" / "quarantine").rglob("*") if copy.is_file()]
