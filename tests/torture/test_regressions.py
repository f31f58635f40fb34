"""Bugs that the crash explorer and the faults found: one test each. The case that showed it first is in its docstring,
where it has one; operations have other numbers by now."""

import errno

import pytest

from duramen.errors import StorageError, UsageError
from duramen.log.read.log import Log
from duramen.log.recover import RecoveryCase
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import Sidecar, Watermark, read_config, read_watermark
from duramen.sidecar.watermark import WatermarkPage
from duramen.testing import CrashPattern, Fault, FaultyDisk, SimulatedDisk, patterns, write_all
from duramen.testing.run import ROOT, read_all

LOST = CrashPattern("lost", "lost")
KEPT = CrashPattern("kept", "kept")


def values_of(log: Log) -> list[bytes]:
    return [record.value for record in read_all(log)]


def after_operation(disk: SimulatedDisk, wanted: str) -> list[SimulatedDisk]:
    """Filled with a clone of the disk after every operation that ends so."""
    clones: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, operation: clones.append(disk.clone()) if operation.endswith(wanted) else None
    return clones


def test_the_name_of_a_directory_that_a_killed_process_made() -> None:
    """keratin:singles:0:0:-1: the next process found the directory and never synced its name."""
    disk = SimulatedDisk()
    made = after_operation(disk, "make_directory /log")
    WritableLog(ROOT, disk=disk)
    killed = made[0]
    WritableLog(ROOT, disk=killed).append(b"one")
    with WritableLog(ROOT, disk=killed.crash(LOST)) as log:
        assert values_of(log) == [b"one"]


def test_the_names_above_a_new_directory() -> None:
    """Only the directory right above was synced, not those that were made with it."""
    disk = SimulatedDisk()
    WritableLog("/data/events/0", disk=disk).append(b"one")
    with WritableLog("/data/events/0", disk=disk.crash(LOST)) as log:
        assert values_of(log) == [b"one"]


def test_the_names_of_the_sidecar_after_a_kill() -> None:
    """fixed-slot: the sidecar alone knows the record size; a process killed before the sync left it without a name."""
    disk = SimulatedDisk()
    replaced = after_operation(disk, "replace /log/.duramen/log.json.new")
    WritableLog(ROOT, format="fixed-slot", record_size=8, disk=disk)
    killed = replaced[0]
    assert read_config(killed, ROOT) is not None
    WritableLog(ROOT, disk=killed).append(b"12345678")
    with WritableLog(ROOT, disk=killed.crash(LOST)) as log:
        assert values_of(log) == [b"12345678"]


def test_a_watermark_without_a_byte_is_none() -> None:
    """keratin:singles:0:6:-1: a reader failed on the empty file that a killed process had just made."""
    disk = SimulatedDisk()
    created = after_operation(disk, "create /log/.duramen/watermark")
    WritableLog(ROOT, disk=disk)
    assert read_watermark(created[0], ROOT) is None
    with WritableLog(ROOT, disk=created[0]) as log:
        log.append(b"one")


def test_a_torn_watermark_leaves_an_older_one() -> None:
    """keratin:writes:0:37:12: overwritten in place, it was torn, and pieces of an unfinished write became damage."""
    mark = Watermark(0, 10, 1, 10, 1, 100)
    page = WatermarkPage(bytes(1000))
    page.put_safely(mark)
    synced = page.put(mark)
    torn = bytearray(page.put(mark._replace(position=20)))
    torn[20:30] = b"torn here."
    assert WatermarkPage(bytes(torn)).newest == mark
    page = WatermarkPage(synced)
    torn = bytearray(page.put_safely(mark._replace(position=20)))
    for place in (20, len(synced) // 3 + 20, 2 * len(synced) // 3 + 20):
        one = bytearray(torn)
        one[place : place + 10] = b"torn here."
        found = WatermarkPage(bytes(one)).newest
        assert found is not None
        assert found.position in (10, 20)


def test_a_torn_watermark_in_recovery() -> None:
    """rustlog:writes:0:40:1:22:12: recovery overwrote the only proof of the records that it had just accepted."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="rustlog", disk=disk)
    log.append(b"one", durability="write")
    left = disk.crash(KEPT)
    stored = after_operation(left, "store /log/.duramen/watermark")
    with WritableLog(ROOT, disk=left) as log:
        assert values_of(log) == [b"one"]
    for seed in range(30):
        again = stored[0].crash(CrashPattern("torn", "kept", block_bytes=512, seed=seed))
        with WritableLog(ROOT, disk=again) as log:
            assert values_of(log) == [b"one"]


def test_pieces_of_a_write_into_a_new_segment() -> None:
    """The watermark on the disk was of the segment before, so a hole in the new one counted as damage."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, disk=disk)
    log.append(b"one")
    log.seal()
    log.append_batch([b"x" * 900] * 6, durability="write")
    for seed in range(40):
        left = disk.crash(CrashPattern("torn", "kept", size="full", block_bytes=512, seed=seed))
        with WritableLog(ROOT, disk=left) as again:
            assert values_of(again)[0] == b"one"


def test_a_header_that_lost_its_length_is_no_empty_record() -> None:
    """durable-log:singles:0:26:25: the first half of a header arrived, zeros behind it, then the rest of the value."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="durable-log", disk=disk)
    log.append(b"x" * (512 - 24 - 16))  # the next header has 16 bytes in this sector
    log.append(b"y" * 3000, durability="write")
    path = log.segments[-1].path
    tree = disk.tree()
    file = disk.open(path)
    write_all(file, 512, bytes(512))
    assert tree[path][512:520] != bytes(8)
    with Log(ROOT, disk=disk.clone()) as reader:  # durable-log:kills:1:73:12
        assert values_of(reader) == [b"x" * 472]
    with WritableLog(ROOT, disk=disk.clone()) as again:
        assert values_of(again) == [b"x" * 472]
        assert RecoveryCase.TORN in [step.case for step in again.recovery]


def test_an_empty_record_across_two_sectors_stays() -> None:
    """durable-log:batches:0:26:4: it was acknowledged, and the zeros of a lost write behind it put it in doubt."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="durable-log", disk=disk)
    log.append(b"x" * (512 - 24 - 16))
    log.append(b"")
    log.append(b"y" * 3000, durability="write")
    with WritableLog(ROOT, disk=disk.crash(CrashPattern("zeros", "kept"))) as again:
        assert values_of(again) == [b"x" * 472, b""]


def test_a_version_that_did_not_arrive_is_not_an_unknown_one() -> None:
    """durable-log:aligned:0:29:12: the magic number ended a sector, the next one was lost, a later one arrived."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="durable-log", disk=disk)
    log.append(b"x" * (512 - 24 - 4))
    log.append(b"y" * 3000, durability="write")
    file = disk.open(log.segments[-1].path)
    write_all(file, 512, bytes(512))
    with WritableLog(ROOT, disk=disk.clone()) as again:
        assert values_of(again) == [b"x" * 484]


def test_a_torn_segment_does_not_choose_the_layout_of_the_log() -> None:
    """rustlog:rolls:0:43:18: what was left of the last segment read as the short layout, and so did all others then."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="rustlog", disk=disk)
    assert read_config(disk, ROOT).options["header_bytes"] == 20  # type: ignore[union-attr]
    log.append(b"")
    log.seal()
    log.append(b"", durability="write")
    disk.open(log.segments[-1].path).truncate(12)
    with WritableLog(ROOT, disk=disk.clone()) as again:
        assert values_of(again) == [b""]


def test_a_header_whose_sync_failed_is_written_again() -> None:
    """The next process saw it in the page cache, where it counts as clean: its own sync brought nothing to the disk."""
    under = SimulatedDisk()
    disk = FaultyDisk(under, [Fault("sync", path="*.log", call=1, error=errno.EIO)])
    with pytest.raises(StorageError):
        WritableLog(ROOT, disk=disk)
    WritableLog(ROOT, disk=disk).append(b"one")
    with WritableLog(ROOT, disk=under.crash(LOST)) as log:
        assert values_of(log) == [b"one"]


def test_records_whose_sync_failed_are_written_again() -> None:
    under = SimulatedDisk()
    disk = FaultyDisk(under, [Fault("sync", path="*.log", call=3, error=errno.EIO)])
    log = WritableLog(ROOT, disk=disk)
    log.append(b"one")
    with pytest.raises(StorageError):
        log.append(b"two")
    log.close()
    with WritableLog(ROOT, disk=disk) as log:
        found = values_of(log)
        log.append(b"three")
    with WritableLog(ROOT, disk=under.crash(LOST)) as log:
        assert values_of(log) == [*found, b"three"]


@pytest.mark.parametrize("options", [{"header_bytes": 12}, {}])
def test_a_first_record_of_zeros_is_refused(options: dict[str, int]) -> None:
    """rustlog-12:singles:1:25:1: offset 0, no value, no time: twelve zeros, which read as space never written."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="rustlog", disk=disk, **options)
    time = {} if options else {"timestamp": 0}
    with pytest.raises(UsageError, match="cannot be empty"):
        log.append(b"", **time)  # type: ignore[arg-type]
    assert log.append(b"one", **time) == 0  # type: ignore[arg-type]
    assert log.append(b"", **time) == 1  # type: ignore[arg-type]
    with WritableLog(ROOT, disk=disk.crash(LOST)) as again:
        assert values_of(again) == [b"one", b""]


@pytest.mark.parametrize("name", ["keratin", "durable-log", "osiris"])
def test_pieces_of_an_unfinished_write_are_not_damage_to_readers(name: str) -> None:
    """Recovery cut them, but a reader that came before it, and `verify`, called them damage."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format=name, disk=disk)
    log.append(b"one")
    for value in (b"2" * 600, b"3" * 600, b"4" * 600):
        log.append(value, durability="write")
    lost = disk.crash(CrashPattern("last", "kept", block_bytes=512))
    with Log(ROOT, disk=lost) as reader:
        assert values_of(reader) == [b"one"]
    report = verify_log(ROOT, disk=lost)
    assert report.ok, report.findings
    assert "torn-tail" in [finding.code for finding in report.findings]
    with WritableLog(ROOT, disk=lost) as log:
        assert values_of(log) == [b"one"]
        assert RecoveryCase.UNSYNCED in [step.case for step in log.recovery]


def test_a_watermark_that_is_ahead_of_the_records_without_checksums() -> None:
    """rustlog:writes:0:35: the power loss kept the watermark and not the bytes; a reader took zeros for records."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="rustlog", disk=disk)
    log.append(b"one")
    for value in (b"2" * 600, b"3" * 600):
        log.append(value, durability="write")
    with Log(ROOT, disk=disk.crash(CrashPattern("last", "kept", block_bytes=512))) as reader:
        assert values_of(reader) == [b"one"]


def test_a_sealed_segment_that_a_killed_process_wrote_down() -> None:
    """The line about it could be seen and was not synced. Recovery relied on it and began the next segment; with the
    power went the line, and of the new segment all but its index."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="osiris", disk=disk)
    log.append(b"one")
    written = after_operation(disk, "write /log/.duramen/sealed.jsonl")
    log.seal()
    killed = written[0]
    WritableLog(ROOT, disk=killed)
    sealed = Sidecar(killed.crash(LOST), ROOT).sealed()
    assert [entry.last_offset for entry in sealed.values()] == [0]


def test_the_index_of_a_segment_that_a_power_loss_kept_from_being_created() -> None:
    """osiris-tracked:reopens:0:56:22: the segment that took its name was found with the old entries after the next
    power loss, and no writer could open the log."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="osiris", disk=disk)
    log.append(b"one")
    before = bytes(disk.map("/log/.duramen/watermark").data)
    log.seal()
    log.append(b"two")
    left = disk.crash(KEPT)  # the power failed before the name of the new segment was on the disk, and kept its index
    left.remove("/log/00000000000000000001.segment")
    mark = left.open("/log/.duramen/watermark")
    write_all(mark, 0, before)
    mark.sync()
    left.sync_directory("/log")
    log = WritableLog(ROOT, disk=left)
    log.append(b"another")
    for pattern in patterns(0, 64):
        with WritableLog(ROOT, disk=left.crash(pattern)) as again:
            assert values_of(again) == [b"one", b"another"]
