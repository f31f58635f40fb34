"""Recovery copies every byte that it cuts to the quarantine, unless the bytes are zeros."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from tests.log.conftest import options, value
from tests.log.writing import Open, content, snapshot, values


def place(files: dict[str, bytes], target: Path) -> Path:
    for path, data in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(data)
    return target


def killed(create: Open, root: Path, target: Path, name: str) -> tuple[Path, bytes, bytes]:
    """A log at ``target`` whose writer was killed after three records, its segment, and the bytes of a fourth."""
    with create(name) as log:
        log.append_batch(values(0, 3))
        before = snapshot(root)
        log.append(value(3))
        segment = Path(log.segments[-1].path).relative_to(root)
        after = (root / segment).read_bytes()
    place(before, target)
    kept = before[str(segment)]
    return target / segment, kept, after[len(kept) :]


def copies(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / ".duramen").glob("quarantine/*"))]


def test_a_torn_record_is_copied_before_it_is_cut(create: Open, root: Path, tmp_path: Path, format_name: str) -> None:
    copy = tmp_path / "copy"
    segment, kept, record = killed(create, root, copy, format_name)
    torn = record[:-3]
    segment.write_bytes(kept + torn)
    with duramen.open(copy, "a") as log:
        assert log.next_offset == 3
        log.append(value(3))
    assert content(copy) == values(0, 4)
    assert copies(copy) == [torn]


@pytest.mark.parametrize("name", ["durable-log", "keratin"])
def test_pieces_of_an_unfinished_write_are_copied_before_they_are_cut(
    create: Open, root: Path, tmp_path: Path, name: str
) -> None:
    """A record that is not whole, and a valid one after it, both after the watermark."""
    with create(name) as log:
        log.append_batch(values(0, 3))
        before = snapshot(root)
        log.append(value(3))
        middle = (root / log.segments[-1].path).stat().st_size
        log.append(value(4))
        segment = str(Path(log.segments[-1].path).relative_to(root))
        after = (root / segment).read_bytes()
    copy = place(before, tmp_path / "copy")
    pieces = bytearray(after[len(before[segment]) :])
    pieces[middle - len(before[segment]) - 1] ^= 1
    (copy / segment).write_bytes(before[segment] + bytes(pieces))
    with duramen.open(copy, "a", **options(name)) as log:
        assert log.next_offset == 3
    assert copies(copy) == [bytes(pieces)]


@pytest.mark.parametrize("name", ["keratin", "osiris"])
def test_a_torn_file_header_is_copied_before_the_segment_is_recreated(
    create: Open, root: Path, tmp_path: Path, name: str
) -> None:
    with create(name) as log:
        log.append_batch(values(0, 3))
        before = snapshot(root)
        log.seal()
        segment = str(Path(log.segments[-1].path).relative_to(root))
        start = (root / segment).read_bytes()
    copy = place(before, tmp_path / "copy")
    torn = start[: len(start) // 2]
    (copy / segment).write_bytes(torn)
    with duramen.open(copy, "a") as log:
        assert log.next_offset == 3
        log.append(value(3))
    assert content(copy) == values(0, 4)
    assert copies(copy) == [torn]
