"""The golden bytes of a group, read and written through the group itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.consumers.files import group_files
from duramen.consumers.groups.store import load
from duramen.formats.stroma.columns import Acked, Bumped, Cleared, Marked, WasReset, decode_snapshot, encode_runs
from tests.consumers.logs import make_log

CREATED_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = make_log(tmp_path / "orders", "keratin", 10)
    (root / "groups").mkdir(exist_ok=True)
    return root


def put(root: Path, golden: Path, **files: str) -> None:
    for suffix, name in files.items():
        shutil.copy(golden / "keratin" / "groups" / name, root / "groups" / f"orders-0_billing.{suffix}")


def content(root: Path) -> tuple[bytes, bytes]:
    return tuple((root / "groups" / f"orders-0_billing.{suffix}").read_bytes() for suffix in ("snap", "delta"))  # type: ignore[return-value]


def test_a_snapshot_and_an_empty_delta(root: Path, golden: Path) -> None:
    put(root, golden, snap="orders-0_billing.snap", delta="orders-0_billing.min.delta")
    with duramen.open(root) as log:
        group = log.group("billing", clock=lambda: CREATED_MS)
        status = group.status()
        assert (status.acked_until, status.in_flight, status.warnings) == (1, 2, ())
        assert [delivery.offset for delivery in group.fetch(1, lease=1)] == [3]
        assert group.ack_many([1, 2]) == 2
        assert group.acked_until == 3


def test_the_delta_with_every_event(root: Path, golden: Path) -> None:
    """It ends with a reset: nothing is acknowledged, nothing in flight."""
    put(root, golden, snap="orders-0_billing.snap", delta="orders-0_billing.delta")
    with duramen.open(root) as log:
        status = log.group("billing", clock=lambda: CREATED_MS).status()
    assert (status.acked_until, status.in_flight, status.acked_ahead) == (0, 0, 0)


def test_the_torn_delta(root: Path, golden: Path) -> None:
    """Without the reset, which is torn, everything below 1 is acknowledged. The torn bytes are kept."""
    put(root, golden, snap="orders-0_billing.min.snap", delta="negative/torn.delta")
    with duramen.open(root) as log:
        (place,) = group_files(log)
        assert load(log.disk, place).end == 168
        group = log.group("billing", clock=lambda: CREATED_MS)
        assert group.acked_until == 1
        assert [delivery.offset for delivery in group.fetch(1)] == [1]
    (kept,) = (root / ".duramen" / "quarantine").iterdir()
    assert kept.read_bytes() == (golden / "keratin/groups/negative/torn.delta").read_bytes()[168:]


def test_a_fresh_group_writes_the_smallest_files(root: Path, golden: Path) -> None:
    with duramen.open(root) as log:
        log.group("billing", clock=lambda: CREATED_MS).compact()
    snap, delta = content(root)
    wanted = (golden / "keratin/groups/orders-0_billing.min.snap").read_bytes()
    assert snap[:24] + snap[40:72] + snap[76:] == wanted[:24] + wanted[40:72] + wanted[76:]
    assert wanted[24:40] == bytes(16), "the vector leaves the hashes of the names unset; a group sets them"
    assert delta == (golden / "keratin/groups/orders-0_billing.min.delta").read_bytes()


def test_the_same_state_is_the_same_snapshot(root: Path, golden: Path) -> None:
    """Deliver as the vector says, acknowledge 0, rewrite at its time: the very bytes."""
    wanted = (golden / "keratin/groups/orders-0_billing.snap").read_bytes()
    columns = decode_snapshot(wanted)
    now_ms = [CREATED_MS - 1]
    with duramen.open(root) as log:
        group = log.group("billing", clock=lambda: now_ms[0])
        group.ack(group.fetch(1, lease=1)[0])
        rows = zip(columns.offset.tolist(), columns.deadline_ms.tolist(), columns.epoch.tolist(), strict=True)
        for offset, deadline_ms, epoch in rows:
            if not epoch:  # the vector has one that was never delivered, which no group does by itself
                group._turn(lambda now, run=Marked(offset, offset + 1, deadline_ms, 0): group._store.write([run], now))
            for attempt in range(1, epoch + 1):
                lease = (deadline_ms - now_ms[0]) / 1000 if attempt == epoch else 0.0
                assert [(d.offset, d.epoch) for d in group.fetch(1, lease=lease)] == [(offset, attempt)]
        now_ms[0] = CREATED_MS
        group.compact()
    snap, delta = content(root)
    assert snap == wanted
    assert delta == (golden / "keratin/groups/orders-0_billing.min.delta").read_bytes()


def test_the_events_of_the_vector(golden: Path, vectors: dict[str, Any]) -> None:
    raw = (golden / "keratin/groups/orders-0_billing.delta").read_bytes()
    deadline_ms = int.from_bytes(raw[80:88], "big")
    runs = [Marked(0, 1, deadline_ms, 1), Acked(0, 1), Cleared(1, 2), Bumped(1), WasReset()]
    assert raw[60:] == encode_runs(runs)
