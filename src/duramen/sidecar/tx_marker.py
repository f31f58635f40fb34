"""The marker of a transaction in progress: ``.duramen/pending.json``.

It exists while the files hold rows that are not committed, or that readers do not know to be committed. It names the
attempt, the ledger that decides, and the watermark before and (once all rows are durable, in a second line) after the
transaction:

- the ledger does not know the attempt: recovery removes everything after ``before``;
- the ledger knows it: the watermark becomes ``after``, and the rows stay.

This module reads and writes the marker; `Snapshot` applies it for readers, `tx_resolve` ends the transaction.
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, replace
from typing import Any

from duramen.disk import Disk, write_all
from duramen.sidecar.json_file import JsonFile, add_checksum, checked_body, inside_log, parse_json, read_state_file
from duramen.sidecar.layout import CONFIG_NAME, DIRECTORY, NEXT_NAME, TX_MARKER_NAME, sidecar_path
from duramen.sidecar.tx_ledger import BatchKey, is_batch_committed
from duramen.sidecar.watermark import Watermark

NEXT = posixpath.join(DIRECTORY, NEXT_NAME)
"""Directory of the log that is about to replace this one."""
CONFIG = posixpath.join(DIRECTORY, CONFIG_NAME)
_MARKER = JsonFile("the marker of a transaction", "delete it to keep all rows that the log holds")
_LEDGER = re.compile(r"(\.\./)*\.duramen/ledger/[^/]+\.json")


@dataclass(frozen=True)
class TxMarker:
    """A transaction in progress. ``after`` is None until all its rows are durable.

    A transaction that replaces the log has no ``before``. It lists the ``files`` of the new log, and the ``old`` files
    that none of them replaces."""

    key: BatchKey
    ledger: str
    """The ledger's file, relative to the log's directory."""
    before: Watermark | None
    after: Watermark | None = None
    files: tuple[str, ...] = ()
    old: tuple[str, ...] = ()

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> TxMarker:
        before, after = (None if mark is None else _watermark(mark) for mark in (tree["before"], tree["after"]))
        batch = tree["batch"]
        key = BatchKey(str(tree["writer"]), None if batch is None else int(batch), str(tree["attempt"]))
        files, old = (tuple(inside_log(str(name)) for name in tree[field]) for field in ("files", "old"))
        return cls(key, _ledger(str(tree["ledger"])), before, after, files, old)

    @property
    def replaces(self) -> bool:
        return self.before is None

    def ledger_path(self, root: str) -> str:
        return posixpath.normpath(posixpath.join(root, self.ledger))

    def is_committed(self, disk: Disk, root: str) -> bool:
        return self.after is not None and is_batch_committed(disk, self.ledger_path(root), self.key)


def tx_marker_path(root: str) -> str:
    return sidecar_path(root, TX_MARKER_NAME)


def read_tx_marker(disk: Disk, root: str) -> TxMarker | None:
    """The marker of the log at ``root``; None if no transaction is in progress."""
    path = tx_marker_path(root)
    raw = read_state_file(disk, path)
    if raw is None:
        return None
    begun, _, prepared = raw.partition(b"\n")
    marker = _MARKER.decode(begun, TxMarker.parse, path)
    if not prepared:
        return marker
    try:
        return replace(marker, after=_watermark(parse_json(checked_body(prepared))))
    except ValueError:  # torn: the line was not durable, so nothing is committed
        return marker


def _watermark(numbers: list[int]) -> Watermark:
    offsets, flags = numbers[:8], numbers[8:]  # earlier versions wrote one flag only
    if len(offsets) < 8 or not all(0 <= int(number) < 2**63 for number in offsets):
        raise ValueError("a watermark holds a number out of range")
    return Watermark(*map(int, offsets), *map(bool, flags))  # type: ignore[arg-type]


def _ledger(path: str) -> str:
    """The path of a ledger file, of the log or of a directory above it. Raises `ValueError` for any other path."""
    if not _LEDGER.fullmatch(path):
        raise ValueError(f"{path!r} is not a ledger file")
    return path


def write_tx_marker(disk: Disk, root: str, marker: TxMarker) -> None:
    """Write or replace the marker, durably."""
    tree = {
        **marker.key._asdict(), "ledger": marker.ledger, "before": marker.before and marker.before.fields,
        "after": marker.after and marker.after.fields, "files": marker.files, "old": marker.old,
    }  # fmt: skip
    _MARKER.replace(disk, tx_marker_path(root), tree)


def prepare_tx_marker(disk: Disk, root: str, after: Watermark) -> None:
    """Add the watermark after the transaction to the marker, durably. A crash leaves the first line as it is."""
    path = tx_marker_path(root)
    position = disk.size(path)
    file = disk.open(path)
    try:
        write_all(file, position, add_checksum(json.dumps(after.fields).encode()))
        file.sync()
    finally:
        file.close()


def remove_tx_marker(disk: Disk, root: str) -> None:
    """Remove the marker, durably: if it came back, later rows would be judged by it."""
    disk.remove(tx_marker_path(root))
    disk.sync_directory(sidecar_path(root))
