"""Two damages at once: a few at random, and those that once broke a promise."""

from __future__ import annotations

import contextlib
import posixpath
from functools import partial
from itertools import islice

import pytest

from duramen.errors import DuramenError
from duramen.log.read.log import Log
from duramen.log.repair import repair_log
from duramen.log.transfer.update import copy
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.testing.run import clocked, disk_of
from tests.damage.damages import Damage, all_damages
from tests.damage.logs import FORMATS, RECORD_SIZE, ROOT, base_log, read, tree, value
from tests.damage.matrix import Row, run
from tests.damage.pairs import broken, combined, hunt
from tests.sampling import examples

FOUND = [
    ("keratin", True, "first record payload byte 189 bit 0", ".duramen/log.json flipped"),
    ("durable-log", False, "00000000000000000000.log first record checksum byte 23 bit 0", "00013.idx cut to 64"),
    ("rustlog", False, "00013.index cut to 32", "00000.index with entries 1 and 2 swapped"),
    ("keratin", False, "segments/00000000000000000013.idx", "00000.idx with entries 2 and 3 swapped"),
    ("fixed-slot", True, ".duramen/watermark cut", "00000000.log at byte 940"),
    ("fixed-slot", True, ".duramen/log.json flipped", "00000000.log and its index"),
    ("fixed-slot", True, ".duramen/log.json cut", "00000000.log and its index"),
    ("durable-log", True, "13.log middle record payload byte 480 bit 6", "13.log bytes 570 to 684 and 684 to 798"),
    ("durable-log", False, "00.log last record offset byte 692 bit 6", "00.log last record reserved byte 690 bit 6"),
    ("osiris", True, "00.segment bytes 262 to 498 and 498 to 752", "00.segment bytes 8 to 262 twice"),
    ("osiris", True, "last record filter_size byte 796 bit 6", "last record chunk_id byte 783 bit 0"),
    ("keratin", False, "manifest.bin created_ts_ms byte 20", "00013.idx cut to 184"),
    ("rustlog", False, "00.log bytes 110 to 220 and 220 to 330", "00.log first record timestamp byte 12 bit 6"),
    ("rustlog", False, "13.log last record offset byte 781 bit 0", "13.log first record timestamp byte 12 bit 6"),
    ("keratin", False, "00007.log and its index", "manifest.bin version byte 8"),
    ("keratin", False, "segments/00000000000000000007.log", "manifest.bin version byte 8"),
]


@pytest.mark.parametrize("name", FORMATS)
def test_at_random(name: str) -> None:
    for row in islice(hunt(name, 7), examples(30)):
        assert not broken(row), (str(row), broken(row))


NEWER = [
    (
        "keratin", True,
        "00013.log file header version byte 8 bit 6",
        "00013.log file header base_offset byte 23 bit 0",
    ),
]  # fmt: skip
HOPELESS = [
    ("fixed-slot", True, ".duramen/watermark", "00000000.log and its index"),
    ("fixed-slot", True, "all of it", "00000000.log and its index"),
]


def both(name: str, sidecar: bool, first: str, second: str) -> Row:
    base = base_log(name, sidecar)
    damages = list(all_damages(base))

    def named(label: str) -> Damage:
        found = [damage for damage in damages if damage.label.endswith(label)]
        return found[-1]

    return run(base, combined(named(first), named(second)))


@pytest.mark.parametrize(("name", "sidecar", "first", "second"), FOUND)
def test_that_once_broke_a_promise(name: str, sidecar: bool, first: str, second: str) -> None:
    row = both(name, sidecar, first, second)
    assert not row.problems, row.problems


@pytest.mark.parametrize(("name", "sidecar", "first", "second"), HOPELESS)
def test_where_nothing_is_left_repair_says_what_to_do(name: str, sidecar: bool, first: str, second: str) -> None:
    row = both(name, sidecar, first, second)
    assert (row.actions, row.exit_code) == ((), 1)
    assert "nothing says how many there were: restore the files from a copy" in row.refused[0]
    assert not broken(row)


@pytest.mark.parametrize(("name", "sidecar", "first", "second"), NEWER)
def test_a_file_of_an_unknown_version_is_left_alone(name: str, sidecar: bool, first: str, second: str) -> None:
    """Whatever else is wrong with it: it may hold records, so none is given up."""
    row = both(name, sidecar, first, second)
    assert "this file is not changed" in row.refused[0]
    assert not broken(row)
    assert row.actions == (), "where the log ends is not known, so nothing else is changed either"


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_size_in_the_sidecar_that_its_watermark_does_not_fit(is_sound: bool) -> None:
    """Another record size, a damaged first slot, and a writer that was killed: the watermark lies within a slot."""
    disk = disk_of({ROOT + "/": b""})
    with clocked():
        log = WritableLog(ROOT, format="fixed-slot", disk=disk, record_size=RECORD_SIZE)
        log.append_batch([value(number) for number in range(9)])
        files = tree(disk)
    files[".duramen/log.json"] = files[".duramen/log.json"].replace(b"90", b"80")
    if not is_sound:
        files["00000000.log"] = bytes(8) + files["00000000.log"][8:]
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})
    for use in (Log, WritableLog, verify_log, repair_log, partial(copy, dst="/copy")):
        with contextlib.suppress(DuramenError):
            use(ROOT, disk=disk)
    with pytest.raises(DuramenError):
        read(disk, "fixed-slot")
