"""Dialects: what the formats' own programs read and write. Their files go on as they are, and are written on request.

The files in ``golden/`` named ``impl`` were written by the programs.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import UsageError
from duramen.formats import SegmentSummary, make
from duramen.formats.keratin.manifest import Manifest
from duramen.formats.osiris.chunk import parse_chunk
from duramen.log.maintain.retention import Retention
from duramen.sidecar.layout import read_config
from tests.log.conftest import options

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
TS = 1_700_000_000_000
PROGRAM_MANIFESTS = ("impl_v1", "impl_v2", "impl_v3")
VALUES = [b"hello", b"", b"\x00\xff" * 10]


def keratin_log(root: Path, manifest: str) -> Path:
    """A log of Keratin's program: three records."""
    shutil.copytree(
        GOLDEN / "keratin" / "segments" / "three", root / "segments", ignore=shutil.ignore_patterns("*.idx.*")
    )
    (root / "segments" / "00000000000000000000.tidx").unlink()  # the program has no time index
    shutil.copy(GOLDEN / "keratin" / "manifest" / manifest / "manifest.bin", root)
    return root


def manifest_of(root: Path) -> Manifest:
    return Manifest.decode((root / "manifest.bin").read_bytes())


@pytest.mark.parametrize("name", PROGRAM_MANIFESTS)
def test_the_manifest_of_keratins_program_stays_its_own(tmp_path: Path, name: str) -> None:
    root = keratin_log(tmp_path / "log", name)
    before = manifest_of(root)
    size = (root / "manifest.bin").stat().st_size
    with duramen.open(root, "a") as log:
        assert manifest_of(root).layout == before.layout, "while the writer is open"
        assert log.append(b"ours", key=b"k") == 3
        log.seal()
        log.append(b"in the next segment")
    after = manifest_of(root)
    assert (root / "manifest.bin").stat().st_size == size
    assert after.layout == before.layout
    assert (after.epoch, after.shared_marker) == (before.epoch, before.shared_marker)
    assert after.epoch == (0 if name == "impl_v1" else 7)
    assert (after.active_base_offset, after.next_offset, after.flags) == (4, 5, 0)
    assert (after.created_ts_ms, after.segment_max_bytes) == (before.created_ts_ms, before.segment_max_bytes)
    assert duramen.verify(root).findings == []
    config = read_config(PosixDisk(), str(root))
    assert config is not None
    assert config.options["dialect"] == "program"
    with duramen.open(root, "a") as log:
        log.append(b"again")
    assert manifest_of(root).layout == before.layout
    assert duramen.verify(root).findings == []


@pytest.mark.parametrize("name", PROGRAM_MANIFESTS)
@pytest.mark.parametrize("damage", ["flipped bit", "overwritten", "missing"])
def test_a_lost_manifest_comes_back_in_its_layout(tmp_path: Path, name: str, damage: str) -> None:
    root = keratin_log(tmp_path / "log", name)
    before = manifest_of(root)
    path = root / "manifest.bin"
    data = bytearray(path.read_bytes())
    if damage == "missing":
        with duramen.open(root, "a"):
            pass  # the sidecar knows the dialect now
        path.unlink()
    elif damage == "flipped bit":
        data[30] ^= 4
        path.write_bytes(data)
    else:
        path.write_bytes(bytes(len(data)))
    duramen.repair(root, plan_only=False)
    after = manifest_of(root)
    assert after.is_of_program
    assert after.next_offset == 3
    if damage == "flipped bit":
        assert (after.layout, after.epoch) == (before.layout, before.epoch)
    elif damage == "overwritten":
        assert after.layout == before.layout
    else:
        assert after.layout == ("program v1" if name == "impl_v1" else "program v2"), "the log remembers the version"
    assert duramen.verify(root).findings == []


def test_retention_and_compaction_keep_the_manifest_of_the_program(tmp_path: Path) -> None:
    root = keratin_log(tmp_path / "log", "impl_v2")
    with duramen.open(root, "a", segment_max_bytes=300) as log:
        for number in range(40):
            log.append(b"value %d" % number, key=b"k%d" % (number % 3))
        log.seal()
        log.compact()
        assert (manifest_of(root).layout, manifest_of(root).epoch) == ("program v2", 7)
        log.retain(Retention(max_bytes=600))
        first = log.first_offset
    after = manifest_of(root)
    assert (after.layout, after.epoch, after.head_offset) == ("program v2", 7, first)
    assert first > 0
    assert duramen.verify(root).ok


@pytest.mark.parametrize("name", ["impl_v2", "impl_v3"])
def test_a_copy_keeps_layout_and_epoch(tmp_path: Path, name: str) -> None:
    root = keratin_log(tmp_path / "log", name)
    duramen.copy(root, tmp_path / "copy")
    duramen.convert(root, tmp_path / "same", "keratin")
    duramen.convert(root, tmp_path / "away", "durable-log", allow_loss=["timestamp"])
    duramen.convert(tmp_path / "away", tmp_path / "back", "keratin")
    assert manifest_of(tmp_path / "back").is_of_program, "there and back again"
    for made in ("copy", "same"):
        manifest = manifest_of(tmp_path / made)
        assert (manifest.layout, manifest.epoch) == (f"program {name[-2:]}", 7)
    duramen.convert(root, tmp_path / "document", "keratin", dialect="document")
    assert manifest_of(tmp_path / "document").layout == "spec"
    assert (tmp_path / "document/segments/00000000000000000000.log").read_bytes() == (
        root / "segments/00000000000000000000.log"
    ).read_bytes()


@pytest.mark.parametrize("name", ["impl_v1", "impl_v3"])
@pytest.mark.parametrize("act", ["append", "torn tail", "repair"])
def test_a_hard_linked_segment_is_not_written_in_place(tmp_path: Path, name: str, act: str) -> None:
    root = keratin_log(tmp_path / "log", name)
    segment, index = (root / "segments" / f"{0:020}.{suffix}" for suffix in ("log", "idx"))
    if act != "append":
        with segment.open("ab") as file:
            file.write(segment.read_bytes()[68:100])
    others = {}
    for path in (segment, index):
        others[path] = tmp_path / path.name
        os.link(path, others[path])
    images = {path: path.read_bytes() for path in others.values()}
    if act == "repair":
        duramen.repair(root, plan_only=False)
    with duramen.open(root, "a") as log:
        assert log.append(b"x" * 70_000) == 3
        log.append(b"y" * 70_000)
    assert {path: path.read_bytes() for path in others.values()} == images
    assert all(path.stat().st_nlink == 1 for path in others), "the log has files of its own"
    assert duramen.verify(root).findings == []
    with duramen.open(root) as log:
        assert [record.value for record in log.scan(0, 3)] == VALUES
    assert not list(root.rglob("*.new"))


# --- new logs


def test_what_a_new_log_has_in_the_dialect_of_the_program(tmp_path: Path) -> None:
    keratin, rustlog, osiris = (tmp_path / name for name in ("keratin", "rustlog", "osiris"))
    with duramen.open(keratin, "a", format="keratin", dialect="program") as log:
        log.append_batch(VALUES)
    assert manifest_of(keratin).layout == "program v1"
    with duramen.open(rustlog, "a", format="rustlog", dialect="program") as log:
        log.append_batch(VALUES)
    written = (GOLDEN / "rustlog/impl/three/00000000000000000000.log").read_bytes()
    assert (rustlog / "00000000000000000000.log").read_bytes() == written
    assert (rustlog / "00000000000000000000.index").read_bytes() == (
        GOLDEN / "rustlog/impl/three/00000000000000000000.index"
    ).read_bytes()
    with duramen.open(osiris, "a", format="osiris", dialect="program") as log:
        log.append_batch(VALUES)
    assert parse_chunk((osiris / "00000000000000000000.segment").read_bytes(), 8)[0].version == 0
    for root in (keratin, rustlog, osiris):
        config = read_config(PosixDisk(), str(root))
        assert config is not None
        assert config.options["dialect"] == "program"
        with duramen.open(root, "a") as log:
            assert log.codec.dialect == "program"
            log.append(b"more")
        assert duramen.verify(root).findings == []


def test_the_manifest_is_byte_for_byte_the_programs() -> None:
    fmt = make("keratin", dialect="program")
    golden = (GOLDEN / "keratin/manifest/impl_v1/manifest.bin").read_bytes()
    assert fmt.log_files([SegmentSummary(0, 2, 201, 72)], TS) == {"manifest.bin": golden}
    second = make("keratin", dialect="program", manifest_version=2).log_files([SegmentSummary(0, 2, 201, 72)], TS)
    manifest = Manifest.decode(second["manifest.bin"])
    assert (manifest.layout, manifest.epoch) == ("program v2", 0)


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris", "fixed-slot"])
def test_a_log_keeps_its_dialect(tmp_path: Path, name: str) -> None:
    root = tmp_path / "log"
    known = {**options(name), "dialect": "program"}
    with duramen.open(root, "a", format=name, **known) as log:
        log.append(b"x" * 16)
    with pytest.raises(UsageError, match=r"dialect 'program'.*'document'"):
        duramen.open(root, "a", dialect="document")
    with duramen.open(root, "a", dialect="program") as log:
        log.append(b"y" * 16)
    with pytest.raises(UsageError, match="must be 'document' or 'program'"):
        make(name, dialect="klingon")
    other = tmp_path / "other"
    with duramen.open(other, "a", format=name, **options(name)) as log:
        log.append(b"x" * 16)
        assert log.codec.dialect == "document"
    with pytest.raises(UsageError, match=r"dialect 'document'.*'program'"):
        duramen.open(other, "a", dialect="program")
    with pytest.raises(UsageError, match=r"dialect 'document'.*'program'"):
        duramen.open(other, dialect="program")


@pytest.mark.parametrize(
    ("name", "contradiction"), [("osiris", {"chunk_version": 1}), ("rustlog", {"header_bytes": 20})]
)
def test_an_option_that_contradicts_the_dialect_is_refused(name: str, contradiction: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="contradicts dialect='program'"):
        make(name, dialect="program", **contradiction)
    assert make(name, dialect="document", **contradiction).dialect == "document"


@pytest.mark.parametrize("name", ["rustlog", "osiris"])
def test_logs_of_other_programs_go_on_in_the_dialect_found(tmp_path: Path, name: str) -> None:
    """Whatever is asked for: a log in two dialects could be read by none."""
    for dialect, other in (("document", "program"), ("program", "document")):
        root = tmp_path / dialect
        with duramen.open(root, "a", format=name, dialect=dialect) as log:
            log.append_batch([b"one", b"two", b"three"])
        shutil.rmtree(root / ".duramen")
        with duramen.open(root, "a", format=name, dialect=other) as log:
            assert log.codec.dialect == dialect
            log.append(b"four")
        assert duramen.verify(root).ok
        with duramen.open(root) as log:
            assert [record.value for record in log.scan()] == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("name", ["rustlog", "osiris", "keratin"])
def test_a_conversion_between_dialects_and_back(tmp_path: Path, name: str) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format=name, **options(name)) as log:
        for number in range(20):
            log.append(b"value %d" % number)
    allowed = ["timestamp"] if name == "rustlog" else []
    done = duramen.convert(root, tmp_path / "program", name, allow_loss=allowed, dialect="program")
    assert done.dialect == "program"
    back = duramen.convert(tmp_path / "program", tmp_path / "document", name, dialect="document")
    assert back.dialect == "document"
    again = duramen.convert(tmp_path / "program", tmp_path / "kept", name)
    assert (again.dialect, again.copied_as_is) == ("program", True)
    for made in ("program", "document", "kept"):
        assert duramen.verify(tmp_path / made).findings == []
        with duramen.open(tmp_path / made) as log:
            assert [record.value for record in log.scan()] == [b"value %d" % number for number in range(20)]
            assert log.codec.dialect == ("document" if made == "document" else "program")
    if name != "rustlog":
        assert _files(tmp_path / "document") == _files(root)


def _files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".duramen" not in path.parts
    }
