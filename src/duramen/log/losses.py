"""Losses that are known: offsets that a repair gave up, kept in ``.duramen/losses.json``.

`verify` reports a gap as damage where the format leaves none by itself. Once a repair has shown the gap and the
operator has accepted it, it is a note. Derived: without this file the gap is merely reported again.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.log.sidecar import DIRECTORY, VERSION

NAME = posixpath.join(DIRECTORY, "losses.json")


class KnownLoss(NamedTuple):
    first: int
    last: int
    why: str
    repair: str
    """Where the copies of that repair are, relative to the log's directory."""


def read_losses(disk: Disk, root: str) -> list[KnownLoss]:
    """The known losses; none where there is no such file, or it cannot be read."""
    path = posixpath.join(root, NAME)
    if disk.kind(root) != Kind.DIRECTORY or disk.kind(path) != Kind.FILE:
        return []
    try:
        tree = json.loads(bytes(disk.map(path).data))
        if tree["duramen"] != VERSION:
            return []
        return [KnownLoss(int(r["first"]), int(r["last"]), str(r["why"]), str(r["repair"])) for r in tree["losses"]]
    except (ValueError, KeyError, TypeError):
        return []


def encode_losses(losses: Iterable[KnownLoss]) -> bytes:
    tree = {"duramen": VERSION, "losses": [loss._asdict() for loss in losses]}
    return json.dumps(tree, indent=2).encode() + b"\n"


def covered(losses: Sequence[KnownLoss], first: int, last: int) -> KnownLoss | None:
    """The last of the losses that together hold all offsets from ``first`` to ``last``; None if one is not known.

    >>> covered([KnownLoss(3, 4, "", ""), KnownLoss(5, 9, "", "")], 4, 6).first
    5
    """
    found = None
    for loss in sorted(losses):
        if loss.first <= first <= loss.last:
            first, found = loss.last + 1, loss
        if first > last:
            return found
    return None
