"""Holds: what a running job still needs, so that retention and compaction leave it there.

A hold is a small file in ``.duramen/holds/`` with a name, an offset and the time at which it lapses. A job renews it
while it runs and releases it at its end; of a job that died the hold lapses by itself. Nothing else depends on it: a
hold that is lost lets retention do what it would have done anyway.
"""

from __future__ import annotations

import json
import posixpath
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import StorageError
from duramen.log.names import check_name, encode_name
from duramen.log.sidecar import DIRECTORY, replace_file

DEFAULT_TTL_S = 600.0


class Need(NamedTuple):
    """Somebody who still needs the records from ``offset`` on: a group, a cursor, a job."""

    kind: str
    name: str
    offset: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} (needs offset {self.offset} on)"


def put_hold(disk: Disk, root: str, name: str, offset: int, expires_us: int) -> None:
    """Hold everything from ``offset`` on until ``expires_us``; again with the same name: renew or move it."""
    check_name("job", name)
    directory = _directory(root)
    if disk.kind(directory) == Kind.MISSING:
        disk.make_directory(directory)
    content = json.dumps({"name": name, "offset": offset, "expires_us": expires_us}).encode()
    replace_file(disk, _path(root, name), content)


def release_hold(disk: Disk, root: str, name: str) -> None:
    """Let go. Nothing happens if there is no such hold."""
    check_name("job", name)
    if disk.kind(_path(root, name)) == Kind.FILE:
        disk.remove(_path(root, name))


def read_holds(disk: Disk, root: str, now_us: int) -> list[Need]:
    """The holds that have not lapsed. One that cannot be read holds everything: its job may still be running."""
    if disk.kind(_directory(root)) != Kind.DIRECTORY:
        return []
    needs = []
    for file, _ in disk.list(_directory(root)):
        if not file.endswith(".json"):
            continue
        try:
            tree = json.loads(bytes(disk.map(posixpath.join(_directory(root), file)).data))
            if int(tree["expires_us"]) > now_us:
                needs.append(Need("job", str(tree["name"]), int(tree["offset"])))
        except StorageError:
            continue  # released just now
        except (ValueError, KeyError, TypeError):
            needs.append(Need("job", file.removesuffix(".json"), 0))
    return needs


def _directory(root: str) -> str:
    return posixpath.join(root, DIRECTORY, "holds")


def _path(root: str, name: str) -> str:
    return posixpath.join(_directory(root), f"{encode_name(name)}.json")
