"""State files of a directory from a stranger: read within bounds, and never more than an error in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen import kernel
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError
from duramen.sidecar import (
    Sealed,
    Sidecar,
    file_swap,
    json_file,
    lines,
    repair_journal,
    sealed_lines,
    tx_ledger,
    tx_marker,
)
from duramen.sidecar.sealed_list import LINE_BYTES

DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "raw",
    [
        DEEP, b'{"a":' * 100_000, b"[" * 33 + b"]" * 33, b"[1e999]", b"[NaN]", b"[-Infinity]", b"9" * 5000,
        b"[18446744073709551616]",
        b'{"a": 1, "a": 2}', b"\xff", "{}".encode("utf-16"), b"", b"[" + b"[]," * json_file.MAX_CONTAINERS + b"[]]",
    ],
)  # fmt: skip
def test_what_is_not_plain_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_file.parse_json(raw)


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    text = "[" * 1000 + '\\"' + "{" * 1000
    assert json_file.parse_json(json.dumps({"name": text}).encode()) == {"name": text}


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "a\0b"])
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        json_file.inside_log(path)


def test_a_file_beyond_its_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would not end
    with pytest.raises(CorruptionError, match="at most 8388608"):
        json_file.read_state_file(PosixDisk(), str(path))


def _log(tmp_path: Path) -> Path:
    root = tmp_path / "log"
    with duramen.open(str(root), "a", format="durable-log") as log:
        log.append_batch([b"one", b"two"])
    return root


def _checked(tree: Any) -> bytes:
    body = json.dumps(tree).encode()
    return body + b" %08x\n" % kernel.crc32c(body)


_LEDGER = ".duramen/ledger/00000000000000000000000000000000.json"
_PENDING = {
    "duramen": 1, "writer": "w", "batch": 1, "attempt": "a", "ledger": _LEDGER, "before": None, "after": None,
    "files": [], "old": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"old": ["../canary"]}, {"files": ["/canary"]}, {"ledger": "../canary"}, {"ledger": "/etc/passwd"},
        {"before": [1, 2]}, {"before": ["a"] * 9}, {"before": [-1] * 9}, {"batch": "x"},
    ],
)  # fmt: skip
def test_a_marker_that_names_other_files_changes_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    root, canary = _log(tmp_path), tmp_path / "canary"
    canary.write_bytes(b"mine")
    (root / ".duramen" / "pending.json").write_text(json.dumps({**_PENDING, **changed}))
    with pytest.raises(CorruptionError, match="marker of a transaction"):
        tx_marker.read_tx_marker(PosixDisk(), str(root))
    with pytest.raises(CorruptionError, match="marker of a transaction"):
        duramen.open(str(root), "a")
    assert canary.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "changed", [{"removals": ["../canary"]}, {"renames": [["0.log", "../canary"]]}, {"renames": [["../canary", "x"]]}]
)
def test_a_change_that_names_other_files_changes_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    root, canary = _log(tmp_path), tmp_path / "canary"
    canary.write_bytes(b"mine")
    tree = {"why": "retention", "renames": [], "removals": [], **changed}
    (root / ".duramen" / "change.json").write_bytes(_checked(tree))
    with pytest.raises(CorruptionError, match="leads out of the log's directory"):
        duramen.open(str(root), "a")
    assert canary.read_bytes() == b"mine"
    assert file_swap.changed_by_file_swap(PosixDisk(), str(root)) == (frozenset(), frozenset())


def test_a_repair_journal_that_names_other_files_is_not_followed(tmp_path: Path) -> None:
    root = _log(tmp_path)
    entry = repair_journal.RepairEntry("../canary", repair_journal.FileBefore.ABSENT)
    written = repair_journal.RepairJournal(
        repair_journal.RepairState.DONE, 1, ".duramen/quarantine/repair-1", 1, [entry]
    )
    repair_journal.write_repair_journal(PosixDisk(), str(root), written)
    with pytest.raises(CorruptionError, match="leads out of the log's directory"):
        repair_journal.read_repair_journal(PosixDisk(), str(root))


def test_a_deep_ledger_decides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_bytes(DEEP)
    with pytest.raises(CorruptionError, match="nested more than"):
        tx_ledger.read_ledger(PosixDisk(), str(path))


def test_the_sealed_list_is_read_line_by_line() -> None:
    entries = [Sealed(base, base + 9, 100, base, base) for base in range(0, 200_000, 10)]
    raw = sealed_lines(entries)
    assert len(raw) > 2 << 20, "more than one piece"
    assert b"".join(lines(memoryview(raw))) == raw
    assert sum(1 for _ in lines(memoryview(raw))) == len(entries)


def test_a_sealed_list_without_a_line_is_left_after_its_first_bytes(tmp_path: Path) -> None:
    root = _log(tmp_path)
    path = root / ".duramen" / "sealed.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert Sidecar(PosixDisk(), str(root)).sealed() == {}
    assert next(lines(PosixDisk().map(str(path)).data)) == bytes(LINE_BYTES)


@pytest.mark.parametrize(
    "tree", [[], {"base": "0"}, {"base": -1, "last_offset": 1, "size_bytes": 1, "crc32": 1, "crc32c": 1}]
)
def test_a_line_that_no_writer_wrote_ends_the_sealed_list(tmp_path: Path, tree: Any) -> None:
    root = _log(tmp_path)
    (root / ".duramen" / "sealed.jsonl").write_bytes(_checked(tree))
    assert Sidecar(PosixDisk(), str(root)).sealed() == {}
