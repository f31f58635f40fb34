"""Which format is this: every golden directory and file, renamed and damaged ones, and what cannot be told."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

import duramen
from duramen.errors import DetectionError, StorageError
from duramen.formats import FORMATS, WRITABLE, Role, ScanPosition, make
from duramen.formats.detect import Detected, detect_directory, detect_file
from tests.formats import vectors
from tests.formats.vectors import GOLDEN

OSIRIS = GOLDEN.parent / "osiris"
ROLES = {
    ".segment": Role.SEGMENT,
    ".log": Role.SEGMENT,
    ".idx": Role.INDEX,
    ".index": Role.INDEX,
    ".tidx": Role.TIME_INDEX,
    ".bin": Role.MANIFEST,
    ".snap": Role.GROUP_SNAPSHOT,
    ".delta": Role.GROUP_DELTA,
    ".cleaner_checkpoint": Role.CHECKPOINT,
}


class Files:
    """A directory that exists in memory only."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def names(self) -> list[str]:
        return list(self._files)

    def read(self, name: str) -> bytes:
        return self._files[name]


def in_memory(**files: bytes) -> Detected:
    return detect_directory("memory", Files(files))


def format_of(path: str) -> str:
    top = path.split("/", maxsplit=1)[0]
    return "fixed-slot" if top == "slot" else top


# --- directories

LOGS = {
    "durable-log/empty": "durable-log",
    "durable-log/three": "durable-log",
    "durable-log/three_base7": "durable-log",
    "keratin/manifest/impl_v1": "keratin",
    "keratin/manifest/impl_v2": "keratin",
    "keratin/manifest/impl_v3": "keratin",
    "keratin/manifest/spec_fresh": "keratin",
    "keratin/manifest/spec_one_sealed": "keratin",
    "keratin/stroma-impl/events/orders/0000000000": "keratin",
    "rustlog/impl/empty": "rustlog",
    "rustlog/impl/three": "rustlog",
    "rustlog/impl/records250": "rustlog",
    "rustlog/spec/empty": "rustlog",
    "rustlog/spec/three": "rustlog",
    "rustlog/spec/records250": "rustlog",
    "slot/rs16/empty": "fixed-slot",
    "slot/rs16/three": "fixed-slot",
    "slot/rs16/upstream_roundtrip": "fixed-slot",
    "slot/rs20/one": "fixed-slot",
    "slot/rs5/one": "fixed-slot",
}


@pytest.mark.parametrize(("path", "expected"), LOGS.items())
def test_golden_directories(path: str, expected: str) -> None:
    found = duramen.detect(GOLDEN / path)
    assert found.format == expected
    assert any(name in found.why for name in ("segment_", "000000", "manifest.bin"))


@pytest.mark.parametrize("path", sorted(p.name for p in OSIRIS.iterdir() if any(p.glob("*.segment"))))
def test_osiris_directories(path: str) -> None:
    found = duramen.detect(OSIRIS / path)
    assert (found.format, found.role) == ("osiris", Role.SEGMENT)
    assert "magic" in found.why


def test_every_golden_directory_is_tested() -> None:
    """A directory that holds files is a log, or one of those that cannot be one."""
    parts = {"rustlog/impl/cleaner_checkpoint", "rustlog/spec/cleaner_checkpoint", "keratin/groups"}
    seen = set()
    for path in GOLDEN.rglob("*"):
        inside = path.parent.relative_to(GOLDEN).as_posix()
        if path.is_file() and "negative" not in inside and inside != ".":
            seen.add(inside.removesuffix("/segments"))
    snapshots = {name for name in seen if "/snapshots/" in name}
    bare = {f"keratin/segments/{name}" for name in ("empty", "three", "three_hdr")}
    assert seen == LOGS.keys() | parts | snapshots | bare


@pytest.mark.parametrize("name", WRITABLE)
def test_logs_that_were_just_written(name: str, tmp_path: Path) -> None:
    fmt = make(name, record_size=5) if name == "fixed-slot" else make(name)
    batch = vectors.batch_of([b"hello"] * 3, range(3))
    vectors.put(tmp_path, dict(fmt.build([batch])))
    assert duramen.detect(tmp_path).format == name


@pytest.mark.parametrize("name", ["empty", "three", "three_hdr"])
def test_the_segments_directory_of_a_keratin_log(name: str) -> None:
    with pytest.raises(DetectionError, match="segments/ directory") as caught:
        duramen.detect(GOLDEN / "keratin/segments" / name)
    assert "parent" in str(caught.value)
    assert caught.value.path is not None


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(DetectionError, match="empty") as caught:
        duramen.detect(tmp_path)
    assert caught.value.path == str(tmp_path)


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        duramen.detect(tmp_path / "nothing")


def test_a_store_of_many_logs(tmp_path: Path) -> None:
    vectors.put(
        tmp_path, {f"topics/orders/partitions/0/{n}": d for n, d in vectors.directory("rustlog/spec/three").items()}
    )
    with pytest.raises(DetectionError, match="many logs") as caught:
        duramen.detect(tmp_path)
    assert "partitions" in str(caught.value)
    assert duramen.detect(tmp_path / "topics/orders/partitions/0").format == "rustlog"


def test_a_directory_of_other_files() -> None:
    with pytest.raises(DetectionError, match=r"a\.txt, b\.txt, c\.txt …"):
        in_memory(**{"d.txt": b"x", "c.txt": b"", "b.txt": b"", "a.txt": b""})


def test_strays_do_not_matter() -> None:
    three = vectors.directory("durable-log/three")
    strays = {"write.lock": b"", "segment_x.log": b"KLOG\0\0\0\0", ".nfs0001": b"OSIL", "core": b"\x7fELF"}
    assert in_memory(**three, **strays).format == "durable-log"


def test_names_and_bytes_that_contradict_each_other() -> None:
    with pytest.raises(DetectionError, match="named like durable-log but starts like osiris"):
        in_memory(**{"segment_00000000000000000000.log": b"OSIL\0\0\0\1"})
    with pytest.raises(DetectionError, match="named like osiris but starts like durable-log"):
        in_memory(
            **{"00000000000000000000.segment": vectors.read("durable-log/three/segment_00000000000000000000.log")}
        )


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"GO", b"\xff" * 100], ids=["empty", "zeros", "torn", "damaged"])
def test_a_name_with_a_form_of_its_own_is_believed(data: bytes) -> None:
    assert in_memory(**{"segment_00000000000000000000.log": data}).format == "durable-log"
    assert in_memory(**{"00000000000000000000.segment": data}).format == "osiris"


def test_a_rustlog_whose_first_segment_is_empty() -> None:
    files = {
        "00000000000000000000.log": b"",
        "00000000000000000003.log": vectors.read("rustlog/spec/three/00000000000000000000.log"),
    }
    found = in_memory(**files)
    assert found.format == "rustlog"
    assert "00000000000000000003.log" in found.why


def test_a_damaged_rustlog_is_known_by_its_index() -> None:
    files = {"00000000000000000000.log": b"junk" * 25, "00000000000000000000.index": b""}
    found = in_memory(**files)
    assert found.format == "rustlog"
    assert "damaged" in found.why
    with pytest.raises(DetectionError, match="no known magic number"):
        in_memory(**{"00000000000000000000.log": b"junk" * 25})


# --- single files


@pytest.mark.parametrize("path", sorted(vectors.VECTORS))
def test_golden_files(path: str) -> None:
    data, name = vectors.read(path), Path(path).name
    fields = Path(name.replace(".stride1.impl", "").replace(".stride40.impl", "").replace(".stride40.spec", ""))
    role = ROLES[fields.suffix or fields.name]
    if path == "slot/rs16/negative/bad_crc_mid.log":
        with pytest.raises(DetectionError, match="no known"):  # two slots must fit, and slot 1 is damaged
            detect_file(name, data)
        return
    found = detect_file(name, data)
    assert found.role == role
    assert name in found.why
    if data or role != Role.INDEX:  # RustLog and Osiris name their indexes alike
        assert found.format == format_of(path)


@pytest.mark.parametrize("path", [p for p in sorted(vectors.VECTORS) if p.startswith(("durable-log", "keratin"))])
def test_a_magic_number_is_known_under_any_name(path: str) -> None:
    data = vectors.read(path)
    if not data or (path.endswith(".idx") and path.startswith("durable-log")):
        return  # durable-log's index has none
    assert detect_file("renamed.bin", data).format == format_of(path)
    assert detect_file("", data).format == format_of(path)


@pytest.mark.parametrize("path", vectors.names("rustlog/", ".log") + vectors.names("slot/", ".log"))
def test_structure_is_known_under_any_name(path: str) -> None:
    data = vectors.read(path)
    if data:
        assert detect_file("renamed.bin", data).format == format_of(path)
    else:
        with pytest.raises(DetectionError, match="holds only zeros"):
            detect_file("renamed.bin", data)


def test_a_file_by_its_path(tmp_path: Path) -> None:
    vectors.put(tmp_path, {"junk": b"junk" * 10})
    with pytest.raises(DetectionError) as caught:
        duramen.detect(tmp_path / "junk")
    assert caught.value.path == str(tmp_path / "junk")
    assert "format=" in str(caught.value)


def forged(prefix: bytes, wanted: int) -> bytes:
    """``prefix`` and the four bytes that give it the CRC-32C ``wanted``: it is linear, so they can be solved for."""
    start = google_crc32c.value(prefix + bytes(4))
    rows = [(google_crc32c.value(prefix + (1 << bit).to_bytes(4, "big")) ^ start, 1 << bit) for bit in range(32)]
    missing, tail = start ^ wanted, 0
    for bit in reversed(range(32)):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows = [(c ^ pivot[0], t ^ pivot[1]) if c >> bit & 1 else (c, t) for c, t in rows if (c, t) != pivot]
        if missing >> bit & 1:
            missing, tail = missing ^ pivot[0], tail ^ pivot[1]
    return prefix + tail.to_bytes(4, "big")


def test_both_structures_at_once() -> None:
    """A slot whose checksum reads as the length of a RustLog record that ends where the slot does."""
    payload = forged((7).to_bytes(8, "big") + b"\0\6\n$", 0)
    data = make("fixed-slot", record_size=16).encode(vectors.batch_of([payload], [0]), ScanPosition(0, -1)).data
    assert data[:4] == b"\0\0\0\0"
    with pytest.raises(DetectionError, match=r"could be rustlog .* or fixed-slot \(record size 16\)"):
        detect_file("00000000.log", data)


@given(
    st.binary(max_size=64), st.sampled_from(["x", "00000000.log", "00000000000000000000.log", ".cleaner_checkpoint"])
)
def test_arbitrary_bytes_are_detected_or_refused(data: bytes, name: str) -> None:
    try:
        found = detect_file(name, data)
    except DetectionError:
        return
    assert found.format in FORMATS
    assert found.why
