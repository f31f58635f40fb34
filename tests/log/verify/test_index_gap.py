"""An index with an entry missing, doubled or out of place between two good ones: noticed, mended, and never followed
to a wrong record or past one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import duramen
from duramen.formats import Format, Role, make
from duramen.log.repair.reindex import reindex
from duramen.log.verify import threads, verify
from tests.log.verify.test_short_index import INDEXED, codes, written
from tests.sampling import every

Entries = list[bytes]
LACKING: dict[str, Callable[[Entries], Entries]] = {
    "a middle one": lambda e: e[: len(e) // 2] + e[len(e) // 2 + 1 :],
    "two of them": lambda e: e[: len(e) // 2] + e[len(e) // 2 + 2 :],
    "the first": lambda e: e[1:],
    "the second": lambda e: e[:1] + e[2:],
    "the last but one": lambda e: e[:-2] + e[-1:],
}
ASTRAY: dict[str, Callable[[Entries], Entries]] = {
    "one twice": lambda e: e[:5] + e[4:],
    "one instead of the next": lambda e: [*e[:5], e[4], *e[6:]],
    "one instead of the one before": lambda e: [*e[:4], e[5], *e[5:]],
    "two swapped": lambda e: [*e[:4], e[5], e[4], *e[6:]],
    "halves swapped": lambda e: e[len(e) // 2 :] + e[: len(e) // 2],
    "the last one first": lambda e: [e[-1], *e[:-1]],
}


@pytest.fixture(params=INDEXED)
def fmt(request: pytest.FixtureRequest) -> Format:
    return INDEXED[str(request.param)]


@pytest.fixture
def root(tmp_path: Path, fmt: Format) -> Path:
    found = written(tmp_path / "log", fmt)
    assert codes(found, fmt.name) == []
    return found


def change(root: Path, fmt: Format, role: Role, base: int, how: Callable[[Entries], Entries]) -> Path:
    path = root / fmt.path_of(role, base)
    raw = path.read_bytes()
    index = fmt.open_index(role, raw, base)
    assert index is not None
    assert len(index) > 7
    bounds = [index.start + row * index.entry_bytes for row in range(len(index) + 1)]
    entries = [raw[start:end] for start, end in pairwise(bounds)]
    path.write_bytes(raw[: index.start] + b"".join(how(entries)))
    return path


def is_noticed(fmt: Format, how: str) -> bool:
    """Next to an end of RustLog's index a wide interval may be one that was chosen, and nothing tells."""
    return fmt.name != "rustlog" or how not in ("the second", "the last but one")


@pytest.mark.parametrize("base", [0, 200, 400])
@pytest.mark.parametrize("how", LACKING)
def test_an_entry_that_is_missing_is_noticed(root: Path, fmt: Format, base: int, how: str) -> None:
    if not is_noticed(fmt, how):
        change(root, fmt, Role.INDEX, base, LACKING[how])
        assert codes(root, fmt.name) == []
        return
    for role in fmt.index_builder(0, 0).headers():
        whole = (root / fmt.path_of(role, base)).read_bytes()
        path = change(root, fmt, role, base, LACKING[how])
        assert codes(root, fmt.name) == [("index-gap", path.name)]
        reindex(str(root), format=fmt.name, **fmt.options)
        assert path.read_bytes() == whole
        assert codes(root, fmt.name) == []


@pytest.mark.parametrize("how", ASTRAY)
def test_an_entry_that_is_astray_is_noticed(root: Path, fmt: Format, how: str) -> None:
    for role in fmt.index_builder(0, 0).headers():
        whole = (root / fmt.path_of(role, 200)).read_bytes()
        path = change(root, fmt, role, 200, ASTRAY[how])
        found = set(codes(root, fmt.name))
        assert found & {("wrong-index-entry", path.name), ("bad-index", path.name), ("index-past-end", path.name)}
        assert {name for _, name in found} == {path.name}
        reindex(str(root), format=fmt.name, **fmt.options)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("how", [*LACKING, *ASTRAY])
def test_pieces_give_the_same_verdict(root: Path, fmt: Format, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(root, fmt, Role.INDEX, 200, (LACKING | ASTRAY)[how])
    alone = duramen.verify(root, format=fmt.name)
    assert bool(alone.findings) == is_noticed(fmt, how)
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    for piece_bytes in (700, 1500, 1 << 20):
        monkeypatch.setattr(threads, "PIECE_BYTES", piece_bytes)
        assert duramen.verify(root, format=fmt.name) == alone


@pytest.mark.parametrize("how", [*LACKING, *ASTRAY])
def test_readers_are_not_led_astray(root: Path, fmt: Format, how: str) -> None:
    with duramen.open(root, format=fmt.name) as log:
        whole = list(log.scan())
    for role in fmt.index_builder(0, 0).headers():
        for base in (0, 200, 400):
            change(root, fmt, role, base, (LACKING | ASTRAY)[how])
    with duramen.open(root, format=fmt.name) as log:
        assert list(log.scan()) == whole
        assert log.next_offset == 600
        for record in whole[:: every(5)]:
            assert log.read(record.offset) == record
        for start in range(0, 600, every(41)):
            assert [record.offset for record in log.scan(start)] == list(range(start, 600))
        if fmt.capabilities.timestamps:
            for record in whole[:: every(41)]:
                assert record.timestamp is not None
                first = next(other for other in whole if other.timestamp >= record.timestamp)  # type: ignore[operator]
                assert log.offset_at(record.timestamp) == first.offset


@pytest.mark.parametrize("how", ["a middle one", "two swapped"])
def test_repair_mends_it(root: Path, fmt: Format, how: str) -> None:
    path = root / fmt.path_of(Role.INDEX, 200)
    whole = path.read_bytes()
    change(root, fmt, Role.INDEX, 200, (LACKING | ASTRAY)[how])
    assert [str(step.action) for step in duramen.repair(root, format=fmt.name).steps][:1] == ["rebuild index"]
    assert duramen.repair(root, format=fmt.name, plan_only=False, **fmt.options).ok
    assert path.read_bytes() == whole


@pytest.mark.parametrize("lengths", [[5] * 300, [5, 900] * 150, [3000] * 40, [1, 1, 1, 2500] * 50])
@pytest.mark.parametrize("by_program", [False, True])
def test_strides_of_records_of_any_length_are_complete(
    tmp_path: Path, lengths: Sequence[int], by_program: bool
) -> None:
    """Nothing is called missing that neither the document nor the program would write."""
    fmt = make("keratin", index_stride_bytes=1000)
    with duramen.open(tmp_path, "a", format="keratin", index_stride_bytes=1000) as log:
        log.append_batch([b"x" * length for length in lengths])
        log.seal()
    if by_program:
        raw = (tmp_path / fmt.segment_path(0)).read_bytes()
        segment = fmt.open_segment(raw, 0)
        columns = segment.scan(segment.start).columns
        picked, counted_from = [], segment.start.position
        for row in range(len(lengths)):
            if columns.position[row] - counted_from >= 1000:
                picked.append(row)
                counted_from = int(columns.position[row])
        built = fmt.index_builder(0, segment.created_ms)
        entries = built.entries(tuple(getattr(columns, name)[picked] for name in ("offset", "position", "timestamp")))
        for role, header in built.headers().items():
            (tmp_path / fmt.path_of(role, 0)).write_bytes(header + entries[role])
    assert [found for found in duramen.verify(tmp_path).findings if found.code != "stale-manifest"] == []


@pytest.mark.parametrize(
    "written",
    [
        [(10, 95), (25, 160), (7, 50), (100, 450)],
        [(100, 150), (50, 200)],
        [(200, 150), (100, 400)],
        [(100, 450), (50, 300)],
        [(50, 220), (100, 100)],
        [(10, 15), (30, 35), (5, 40)],
    ],
)
def test_an_interval_that_was_changed_is_no_gap(tmp_path: Path, written: list[tuple[int, int]]) -> None:
    for interval, count in written:
        with duramen.open(tmp_path, "a", format="rustlog", index_interval_records=interval) as log:
            log.append_batch([b"x"] * count)
    with duramen.open(tmp_path, "a", format="rustlog") as log:
        log.seal()
    assert duramen.verify(tmp_path).findings == []
