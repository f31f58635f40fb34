"""The policy of a group: lease, attempts and dead letters, stored beside its state in ``.duramen/groups/NAME.json``.

The first consumer that states a policy stores it. Later handles inherit what they do not state, and are refused if they
state something else, unless they update it (``update_policy=True``). All consumers of a group therefore agree on when a
record is given up.

The path of the dead letters is compared and shown, never opened: a log from an untrusted source must not choose where
this process writes. A handle that fetches from a group with dead letters names them itself.
"""

from __future__ import annotations

import posixpath
from typing import Any, NamedTuple

from duramen.disk import Disk
from duramen.errors import UsageError
from duramen.sidecar import SMALL_BYTES, JsonFile

DEFAULT_LEASE_MS = 30_000
_FILE = JsonFile(
    "the policy of a group", "`duramen group PATH NAME repair` sets the file aside", SMALL_BYTES,
    separator=b" ",
)  # fmt: skip


class GroupPolicy(NamedTuple):
    """What all consumers of a group agree on."""

    lease_ms: int = DEFAULT_LEASE_MS
    max_attempts: int | None = None
    dead_letter: str | None = None
    """Path of the other log, relative to the directory of this one."""


def read_policy(disk: Disk, path: str) -> GroupPolicy | None:
    """The stored policy, or None. `CorruptionError` if the file is damaged."""
    return _FILE.read(disk, path, _parsed)


def _parsed(tree: dict[str, Any]) -> GroupPolicy:
    attempts, target = tree["max_attempts"], tree["dead_letter"]
    return GroupPolicy(
        int(tree["lease_ms"]), None if attempts is None else int(attempts), None if target is None else str(target)
    )


def write_policy(disk: Disk, path: str, policy: GroupPolicy) -> None:
    _FILE.replace(disk, path, policy._asdict())


def agree(stored: GroupPolicy | None, stated: dict[str, Any], *, update: bool, group: str, path: str) -> GroupPolicy:
    """The policy of a handle that states some of it. `UsageError` if that contradicts the stored one."""
    if stored is None or update:
        policy = GroupPolicy(**stated)
    else:
        policy = stored._replace(**stated)
        for name, before, now in zip(GroupPolicy._fields, stored, policy, strict=True):
            if before != now:
                raise UsageError(
                    f"the group {group!r} has {name}={before!r} (got {now!r})", path=path,
                    hint="leave the option out to use the stored one, or pass update_policy=True to change it for all",
                )  # fmt: skip
    if (policy.max_attempts is None) != (policy.dead_letter is None):
        raise UsageError("max_attempts and dead_letter must be given together", path=path)
    return policy


def relative(target: str, log: str) -> str:
    """The path of the dead letters as the policy stores it: it stays right if both logs move together.

    >>> relative("/data/dead", "/data/orders")
    '../dead'
    """
    return posixpath.relpath(posixpath.abspath(target), posixpath.abspath(log))
