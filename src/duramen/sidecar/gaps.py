"""Why offsets are missing: compaction and retention removed them, or a repair gave them up.

``.duramen/compaction.json`` says how far compaction and retention have come, ``.duramen/losses.json`` which offsets a
repair gave up with the operator's consent. `verify` and readers consult both before they report a gap. Without these
files the gaps are reported again; nothing else depends on them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.sidecar.json_file import SMALL_BYTES, JsonFile
from duramen.sidecar.layout import COMPACTION_NAME, DIRECTORY, LOSSES_NAME

COMPACTION_PATH = posixpath.join(DIRECTORY, COMPACTION_NAME)
LOSSES_PATH = posixpath.join(DIRECTORY, LOSSES_NAME)
_COMPACTION = JsonFile(limit_bytes=SMALL_BYTES, is_versioned=False, sort_keys=False)
_LOSSES = JsonFile(indent=2, sort_keys=False)


class CompactionState(NamedTuple):
    """How far compaction and retention have come.

    ``cleaned_until`` is the offset after the last finished compaction, ``begun_until`` after the last one that was
    started. ``retained_until`` is the first offset of the log after the last retention. A gap below ``begun_until`` is
    not a loss to a reader; a gap below ``retained_until`` is.
    """

    cleaned_until: int = 0
    begun_until: int = 0
    at_us: int = 0
    retained_until: int = 0

    def encode(self) -> bytes:
        return _COMPACTION.encode(self._asdict())

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> CompactionState:
        retained_until = int(tree.get("retained_until", 0))
        return cls(int(tree["cleaned_until"]), int(tree["begun_until"]), int(tree["at_us"]), retained_until)


def read_compaction_state(disk: Disk, root: str) -> CompactionState:
    """The state of the log at ``root``; all zeros if the file is missing or cannot be read."""
    path = posixpath.join(root, COMPACTION_PATH)
    return _COMPACTION.read_if_sound(disk, path, CompactionState.parse) or CompactionState()


class KnownLoss(NamedTuple):
    """Offsets that a repair gave up. ``repair`` is the directory with its copies, relative to the log's directory."""

    first: int
    last: int
    why: str
    repair: str


def read_known_losses(disk: Disk, root: str) -> list[KnownLoss]:
    """The known losses of the log at ``root``; none if the file is missing or cannot be read."""
    if disk.kind(root) != Kind.DIRECTORY:
        return []
    return _LOSSES.read_if_sound(disk, posixpath.join(root, LOSSES_PATH), _parse_losses) or []


def _parse_losses(tree: dict[str, Any]) -> list[KnownLoss]:
    return [KnownLoss(int(r["first"]), int(r["last"]), str(r["why"]), str(r["repair"])) for r in tree["losses"]]


def encode_known_losses(losses: Iterable[KnownLoss]) -> bytes:
    return _LOSSES.encode({"losses": [loss._asdict() for loss in losses]})


def known_loss_of(losses: Sequence[KnownLoss], first: int, last: int) -> KnownLoss | None:
    """The last of the losses that together cover all offsets from ``first`` to ``last``; None if they do not.

    >>> known_loss_of([KnownLoss(3, 4, "", ""), KnownLoss(5, 9, "", "")], 4, 6).first
    5
    """
    found = None
    for loss in sorted(losses):
        if loss.first <= first <= loss.last:
            first, found = loss.last + 1, loss
        if first > last:
            return found
    return None
