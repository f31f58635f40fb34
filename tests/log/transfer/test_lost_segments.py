"""A conversion of a log that lacks a segment, or the end of one, raises."""

from __future__ import annotations

import posixpath

import pytest

from duramen.errors import CorruptionError
from duramen.log.transfer.convert import convert
from duramen.log.transfer.loss_survey import FIELDS
from duramen.log.write.writable_log import WritableLog
from duramen.testing.run import clocked, disk_of
from tests.damage.logs import OPTIONS, ROOT, base_log, places, tree, value


@pytest.mark.parametrize("records", [None, 0, 1])
def test_a_segment_of_a_broker_that_is_lost_or_ends_early_is_not_converted(records: int | None) -> None:
    """The sealed list does not have it: only the gap before the next one shows the loss."""
    base = base_log("osiris", True)
    path = base.segments[1]
    files = dict(base.files)
    content = files.pop(path)
    if records is not None:
        ends = [place.end for place in base.places if place.path == path]
        files[path] = content[: ends[0] * records]
    disk = disk_of({posixpath.join(ROOT, name): data for name, data in files.items()})
    with pytest.raises(CorruptionError, match="missing before this segment"):
        convert(ROOT, "/new", "keratin", disk=disk, allow_loss=tuple(FIELDS))


@pytest.mark.parametrize("name", ["keratin", "kafka"])
def test_a_sealed_segment_that_is_the_last_one_is_compared_with_its_digest(name: str) -> None:
    """The active segment, which held nothing, is missing, too."""
    disk = disk_of({ROOT + "/": b""})
    with clocked(), WritableLog(ROOT, format=name, disk=disk, **OPTIONS[name]) as log:
        for number in range(6):
            log.append(value(number))
        log.seal()
    files = tree(disk)
    first, active = sorted(path for path in files if path.endswith(".log"))
    third = next(place for place in places(name, files) if place.first == 3)
    files[first] = files[first][: third.start]
    del files[active]
    disk = disk_of({posixpath.join(ROOT, path): data for path, data in files.items()})
    with pytest.raises(CorruptionError, match="the sealed segment has"):
        convert(ROOT, "/new", "durable-log", disk=disk, allow_loss=tuple(FIELDS))
