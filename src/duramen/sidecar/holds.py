"""Holds: offsets that a running job still needs, so that retention and compaction keep them.

A hold is a small file in ``.duramen/holds/`` with a name, an offset and an expiry time. The job renews it while it runs
and releases it at the end; the hold of a job that died expires. A lost hold only lets retention proceed.
"""

from __future__ import annotations

import posixpath
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, StorageError
from duramen.names import check_name, encode_name
from duramen.sidecar.json_file import SMALL_BYTES, JsonFile
from duramen.sidecar.layout import HOLDS_NAME, sidecar_path

DEFAULT_TTL_S = 600.0
_HOLD = JsonFile("the hold", limit_bytes=SMALL_BYTES, is_versioned=False, sort_keys=False, end=b"")


class Need(NamedTuple):
    """A consumer (group, cursor or job) that still needs the records from ``offset`` on."""

    kind: str
    name: str
    offset: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} (needs offset {self.offset} on)"


def put_hold(disk: Disk, root: str, name: str, offset: int, expires_us: int) -> None:
    """Hold everything from ``offset`` on until ``expires_us``. A second call with the same name renews or moves it."""
    check_name("job", name)
    directory = sidecar_path(root, HOLDS_NAME)
    if disk.kind(directory) == Kind.MISSING:
        disk.make_directory(directory)
    _HOLD.replace(disk, _path(root, name), {"name": name, "offset": offset, "expires_us": expires_us})


def release_hold(disk: Disk, root: str, name: str) -> None:
    """Remove a hold. Does nothing if it does not exist."""
    check_name("job", name)
    if disk.kind(_path(root, name)) == Kind.FILE:
        disk.remove(_path(root, name))


def read_holds(disk: Disk, root: str, now_us: int) -> list[Need]:
    """The holds that have not expired. One that cannot be read holds everything: its job may still be running."""
    directory = sidecar_path(root, HOLDS_NAME)
    if disk.kind(directory) != Kind.DIRECTORY:
        return []
    needs = []
    for file, _ in disk.list(directory):
        if not file.endswith(".json"):
            continue
        try:
            found = _HOLD.read(disk, posixpath.join(directory, file), _parse)
        except StorageError:
            continue  # the job has just released it
        except CorruptionError:
            found = Need("job", file.removesuffix(".json"), 0), now_us + 1
        if found is not None and found[1] > now_us:
            needs.append(found[0])
    return needs


def _parse(tree: dict[str, Any]) -> tuple[Need, int]:
    return Need("job", str(tree["name"]), int(tree["offset"])), int(tree["expires_us"])


def _path(root: str, name: str) -> str:
    return posixpath.join(sidecar_path(root, HOLDS_NAME), f"{encode_name(name)}.json")
