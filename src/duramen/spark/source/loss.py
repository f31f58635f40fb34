"""Records that a read can no longer deliver: found on the driver and in tasks, and told with offsets, count and reason.

With ``failOnDataLoss=true`` a loss raises `OffsetError`, whose message begins with "data loss"; otherwise the same
sentence goes to the standard error of the process that noticed it, and the read goes on. Nothing is passed over without
one of the two. What compaction removed is not lost: a newer record of the same key exists.

The verdict on files that should exist is `duramen.log.verify.sidecar_check`'s, as for `verify`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duramen.disk import Disk, Kind
from duramen.errors import OffsetError
from duramen.formats import Format
from duramen.log import SidecarEvidence, list_log, settled_digests
from duramen.sidecar import known_loss_of, read_compaction_state, read_known_losses

if TYPE_CHECKING:
    from duramen.log import Log

GOES_ON = "goes on with the records that exist"


@dataclass(frozen=True)
class Loss:
    """Offsets from ``first`` to before ``end`` that cannot be read, and why."""

    path: str
    first: int
    end: int
    why: str

    def tell(self, *, fails: bool) -> None:
        """Raise, or write a line to the standard error."""
        tell(f"{in_words(self.first, self.end)}: {self.why}", self.path, self.first, fails=fails)


def tell(what: str, path: str, offset: int, otherwise: str = GOES_ON, *, fails: bool) -> None:
    """Raise, or write a line to the standard error; ``otherwise`` says what ``failOnDataLoss=false`` does."""
    if fails:
        raise OffsetError(f"data loss: {what}", path=path, offset=offset, hint=f"failOnDataLoss=false {otherwise}")
    warn(f"{path}: data loss: {what}; failOnDataLoss=false {otherwise}")


def warn(text: str) -> None:
    """A line for the person at the driver, or in the log of an executor."""
    sys.stderr.write(f"duramen: {text}\n")
    sys.stderr.flush()


def in_words(first: int, end: int) -> str:
    """
    >>> in_words(7, 10)
    'offsets 7 to 9 (3 in all)'
    """
    return f"offset {first} (1 in all)" if end - first == 1 else f"offsets {first} to {end - 1} ({end - first} in all)"


def look_again(log: Log, disk: Disk) -> SidecarEvidence:
    """List a log's files again; what the sidecar said before that, for `missing_segments` and the digests."""
    evidence = SidecarEvidence(disk, log.path, log.codec)
    log.refresh()
    return evidence


def missing_segments(log: Log, disk: Disk, before: SidecarEvidence, first: int, end: int) -> Iterator[Loss]:
    """Segments of a log that should hold some of these offsets, and whose files are missing. ``before`` is what
    `look_again` returned."""
    listed = log.snapshot.bases
    missing = [found for found in before.missing(listed) if disk.kind(found.path) != Kind.FILE]
    if not missing:
        return
    # Retention, compaction or a roll may have come between the two looks.
    still = {(found.path, found.first_offset) for found in SidecarEvidence(disk, log.path, log.codec).missing(listed)}
    for found in missing:
        low = max(found.first_offset or 0, first)
        high = end if found.last_offset is None else min(found.last_offset + 1, end)
        if (found.path, found.first_offset) in still and low < high:
            yield Loss(found.path, low, high, f"{found.message}, and neither retention nor compaction removed it")


def gap_after(disk: Disk, root: str, fmt: Format, path: str, first: int, end: int) -> Loss | None:
    """The loss that a gap between two segments is; None where the format leaves gaps, a repair accepted this one, or
    the sealed list names the segments: the plan has reported those."""
    if (
        first >= end
        or not fmt.capabilities.lost_segments_show
        or known_loss_of(read_known_losses(disk, root), first, end - 1)
    ):
        return None
    sealed = sorted((one.base, one.last_offset) for one in settled_digests(disk, root, fmt).values())
    for base, last in sealed:
        first = last + 1 if base <= first <= last else first
    for base, last in reversed(sealed):
        end = base if base < end <= last + 1 else end
    if first >= end:
        return None
    return Loss(path, first, end, "they are missing between two segments, and this format leaves no gap: one is lost")


def removed_segment(disk: Disk, root: str, fmt: Format, path: str, base: int, first: int, end: int) -> Loss | None:
    """The loss that a segment is which was listed and has gone; None where compaction emptied it."""
    bases = [files.base or 0 for files in list_log(disk, root, fmt).segments]
    state, begins = read_compaction_state(disk, root), min(bases, default=end)
    retained = state.retained_until if state.begun_until >= begins else begins
    if retained > base:
        return Loss(path, first, end, f"the segment was removed after the read was planned; the log begins at {begins}")
    if state.begun_until > base and base not in settled_digests(disk, root, fmt):
        return None
    return Loss(path, first, end, "the segment's file was deleted after the read was planned")
