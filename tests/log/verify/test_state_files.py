"""What is not records and yet promises something: ledgers, the state of groups, the watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen.formats import Severity
from duramen.log import repair_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_once([[b"one", b"two"]], writer="query", batch=0)
        group = log.group("workers")
        group.ack(group.fetch(1))
    return tmp_path / "log"


def found(root: Path) -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in duramen.verify(root).findings]


def test_a_sound_log_has_no_finding(root: Path) -> None:
    assert found(root) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"garbage", b'{"duramen": 1, "batch": 0}'])
def test_a_ledger_that_cannot_be_read(root: Path, content: bytes) -> None:
    ledger = next((root / ".duramen" / "ledger").iterdir())
    ledger.write_bytes(content)
    ledger.with_suffix(".json.new").write_bytes(b"left by a killed process")
    assert found(root) == [("bad-ledger", Severity.DAMAGE)]
    assert duramen.verify(root).findings[0].path == str(ledger)
    assert not repair_log(str(root)).steps, "which batches are stored can only be restored"
    with duramen.open(root, "a") as log, pytest.raises(duramen.CorruptionError):
        log.append_once([[b"one", b"two"]], writer="query", batch=0)


def test_group_state_outside_of_keratin(root: Path) -> None:
    state = next((root / ".duramen" / "groups").glob("*.delta"))
    content = bytearray(state.read_bytes())
    content[5] ^= 1
    state.write_bytes(content)
    assert found(root) == [("bad-delta", Severity.DAMAGE)]
    with duramen.open(root, "a") as log:
        assert log.append(b"three") == 2
    plan = repair_log(str(root), plan_only=False)
    assert f".duramen/groups/{state.name}" in [step.path for step in plan.steps]
    assert found(root) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not a watermark at all".ljust(300, b"?"), [("bad-watermark", Severity.WARNING)]),
        (b"cut", [("bad-watermark", Severity.WARNING)]),
        (b"", []),
        (bytes(300), []),
        (b"torn before the first sync".ljust(76, b"?") + bytes(224), []),
    ],
)
def test_a_watermark_of_garbage(root: Path, content: bytes, expected: list[tuple[str, Severity]]) -> None:
    (root / ".duramen" / "watermark").write_bytes(content)
    (root / ".duramen" / "closed.json").unlink()
    assert found(root) == expected
    with duramen.open(root, "a") as log:
        assert log.append(b"three") == 2
    assert found(root) == []
