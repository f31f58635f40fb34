"""An index that is right as far as it goes, and ends before the format's rules say that it may."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import duramen
from duramen.formats import Format, Role, make
from duramen.log.repair.reindex import reindex
from duramen.log.verify import threads, verify
from tests.log.conftest import START_US, batch

STRIDE_BYTES = 1000
INDEXED = {
    "durable-log": make("durable-log"),
    "keratin": make("keratin", index_stride_bytes=STRIDE_BYTES),
    "rustlog": make("rustlog", index_interval_records=10),
    "osiris": make("osiris", chunk_max_records=5),
}


def written(root: Path, fmt: Format) -> Path:
    """A log of another program: two sealed segments and an active one."""
    for relative, content in fmt.build([batch(fmt, first, 200) for first in (0, 200, 400)], START_US // 1000):
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def cut(path: Path, fmt: Format, role: Role, base: int, lost: int) -> None:
    """Take entries away from the end of an index."""
    raw = path.read_bytes()
    index = fmt.open_index(role, raw, base)
    assert index is not None
    path.write_bytes(raw[: index.start + (len(index) - lost) * index.entry_bytes])


def codes(root: Path, name: str) -> list[tuple[str, str]]:
    return [(found.code, Path(found.path).name) for found in duramen.verify(root, format=name).findings]


@pytest.fixture(params=INDEXED)
def fmt(request: pytest.FixtureRequest) -> Format:
    return INDEXED[str(request.param)]


@pytest.mark.parametrize("lost", [1, 5])
@pytest.mark.parametrize("base", [0, 200])
def test_of_a_sealed_segment(tmp_path: Path, fmt: Format, base: int, lost: int) -> None:
    root = written(tmp_path / "log", fmt)
    assert codes(root, fmt.name) == []
    for role in fmt.index_builder(0, 0).headers():
        path = root / fmt.path_of(role, base)
        whole = path.read_bytes()
        cut(path, fmt, role, base, lost)
        assert codes(root, fmt.name) == [("short-index", path.name)]
        path.write_bytes(whole)


def test_pieces_give_the_same_verdict(tmp_path: Path, fmt: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    root = written(tmp_path / "log", fmt)
    cut(root / fmt.path_of(Role.INDEX, 200), fmt, Role.INDEX, 200, 3)
    alone = duramen.verify(root, format=fmt.name)
    assert [found.code for found in alone.findings] == ["short-index"]
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    for piece_bytes in (1500, 1 << 20):
        monkeypatch.setattr(threads, "PIECE_BYTES", piece_bytes)
        assert duramen.verify(root, format=fmt.name) == alone


def test_the_advice_helps(tmp_path: Path, fmt: Format) -> None:
    root = written(tmp_path / "log", fmt)
    cut(root / fmt.path_of(Role.INDEX, 0), fmt, Role.INDEX, 0, 2)
    reindex(str(root), format=fmt.name)
    assert codes(root, fmt.name) == []


def test_the_active_one_may_lag_until_the_log_is_closed(tmp_path: Path, fmt: Format) -> None:
    root = written(tmp_path / "log", fmt)
    path = root / fmt.path_of(Role.INDEX, 400)
    cut(path, fmt, Role.INDEX, 400, 3)
    expected = [("short-index", path.name)] if fmt.capabilities.index_at_once else []  # RabbitMQ would cut the records
    assert codes(root, fmt.name) == expected  # of another program, which may be at work
    with duramen.open(root, "a", format=fmt.name, segment_max_age_ms=2**40, **fmt.options) as log:
        log.append(b"one more")
        assert codes(root, fmt.name) == []
    assert codes(root, fmt.name) == []
    cut(path, fmt, Role.INDEX, 400, 3)
    assert codes(root, fmt.name) == [("short-index", path.name)]


def test_an_empty_file(tmp_path: Path, fmt: Format) -> None:
    root = written(tmp_path / "log", fmt)
    path = root / fmt.path_of(Role.INDEX, 0)
    path.write_bytes(b"")
    assert codes(root, fmt.name)[0] in [("short-index", path.name), ("bad-index", path.name)]


def test_the_entries_of_an_index_show_its_interval(tmp_path: Path) -> None:
    fmt = make("rustlog", index_interval_records=150)
    root = written(tmp_path / "log", fmt)
    path = root / fmt.path_of(Role.INDEX, 0)
    assert codes(root, "rustlog") == []
    cut(path, fmt, Role.INDEX, 0, 1)
    assert codes(root, "rustlog") == []  # one entry tells nothing
    path.write_bytes(b"")
    assert codes(root, "rustlog") == [("short-index", path.name)]


def test_the_programs_own_keratin_index_is_complete(tmp_path: Path) -> None:
    """It has an entry for the record after the one that reaches the stride, and none if that was the last."""
    fmt = INDEXED["keratin"]
    for count in range(20, 70):
        root = tmp_path / str(count)
        for relative, content in fmt.build([batch(fmt, 0, count), batch(fmt, count, 10)], START_US // 1000):
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            (root / relative).write_bytes(content)
        raw = (root / fmt.segment_path(0)).read_bytes()
        segment = fmt.open_segment(raw, 0)
        columns = segment.scan(segment.start).columns
        ends = np.append(columns.position[1:], len(raw))
        picked, counted_from = [], segment.start.position
        for row in range(count):
            if columns.position[row] - counted_from >= STRIDE_BYTES:
                picked.append(row)
                counted_from = int(columns.position[row])
        assert all(ends[row] > columns.position[row] for row in picked)
        for role in (Role.INDEX, Role.TIME_INDEX):
            built = fmt.index_builder(0, START_US // 1000)
            entries = built.entries(
                tuple(getattr(columns, name)[picked] for name in ("offset", "position", "timestamp"))
            )
            (root / fmt.path_of(role, 0)).write_bytes(built.headers()[role] + entries[role])
        assert codes(root, "keratin") == [], count


def test_steps_make_no_difference(tmp_path: Path, fmt: Format) -> None:
    """A large segment is scanned, and its index made, in many steps."""
    written(tmp_path, fmt)
    segment = fmt.open_segment((tmp_path / fmt.segment_path(0)).read_bytes(), 0)
    builder, cursor = fmt.index_builder(0, START_US // 1000), segment.start
    while (rows := segment.scan(cursor, max_records=40)).count:
        builder.add(rows)
        cursor = rows.cursor
    for role, content in builder.build().items():
        assert content == (tmp_path / fmt.path_of(role, 0)).read_bytes()


@pytest.mark.parametrize("closed", [True, False, None])
@pytest.mark.parametrize("torn", [False, True])
def test_verify_says_what_rabbitmq_would_discard(tmp_path: Path, closed: bool | None, torn: bool) -> None:
    """RabbitMQ cuts what its index lacks when it starts: also where nothing says that the log was closed, where the
    last write did not finish, and without a sidecar."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format="osiris", dialect="program") as log:
        for number in range(10):
            log.append_batch([b"record %d" % number] * 3)
        if closed is False:
            left = tmp_path / "left"
            shutil.copytree(root, left)
    if closed is False:
        root = left
    elif closed is None:
        shutil.rmtree(root / ".duramen")
    index = root / f"{0:020}.index"
    index.write_bytes(index.read_bytes()[: 8 + 7 * 29])
    segment = root / f"{0:020}.segment"
    if torn:
        with segment.open("ab") as file:
            file.write(segment.read_bytes()[8:40])
    found = [one for one in duramen.verify(root).findings if one.code == "short-index"]
    assert [(one.first_offset, one.last_offset, str(one.severity)) for one in found] == [(21, 29, "warning")]
    assert "RabbitMQ trusts the index, and would discard the records from offset 21 on" in found[0].message
    assert f"`duramen reindex {root}`" in found[0].action
    reindex(str(root))
    assert [one.code for one in duramen.verify(root).findings if one.code not in ("torn-tail", "zero-tail")] == []
    index.unlink()
    (missing,) = [one for one in duramen.verify(root).findings if one.code == "missing-index"] or [None]
    assert (missing is None) == (closed is False)
    if missing is not None:
        assert "RabbitMQ" in missing.action
