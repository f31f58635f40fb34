"""The simulated disk: what a crash may leave, against a model that keeps every version of everything.

The model knows nothing of blocks that are dirty, of groups of names or of how an outcome is composed. It keeps the full
state of each file after each change since its sync, and of each directory, and asks of every outcome: is each 512-byte
block one that some version had, is each name one that some version held?
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from duramen.disk.vfs import File, write_all
from duramen.errors import LockedError, UsageError
from duramen.testing.crash import CrashPattern, Truncated, Written, patterns, survive
from duramen.testing.simulated_disk import SimulatedDisk

BLOCK = 512


def disk_with(path: str, synced: bytes) -> tuple[SimulatedDisk, File]:
    """A disk with one file that is durable, name and bytes."""
    disk = SimulatedDisk()
    file = disk.create(path)
    write_all(file, 0, synced)
    file.sync()
    disk.sync_directory("/")
    return disk, file


def outcomes(disk: SimulatedDisk, path: str, *, seeds: int = 1, **pattern: object) -> set[bytes | None]:
    """What a file may hold after crashes of one kind; None where it has no name."""
    crashed = [disk.crash(CrashPattern(**pattern, seed=seed)) for seed in range(seeds)]  # type: ignore[arg-type]
    return {after.tree().get(path) for after in crashed}


# --- every kind, by example


def test_unsynced_bytes_are_lost_kept_or_zeros() -> None:
    disk, file = disk_with("/a", b"old")
    file.write(3, b"new")
    assert outcomes(disk, "/a", data="lost") == {b"old"}
    assert outcomes(disk, "/a", data="kept") == {b"oldnew"}
    assert outcomes(disk, "/a", data="zeros") == {b"old\0\0\0"}


def test_synced_bytes_survive_without_the_size_of_later_ones() -> None:
    disk, file = disk_with("/a", b"old")
    file.truncate(100)
    file.sync()
    assert outcomes(disk, "/a", data="lost") == {b"old" + bytes(97)}


def test_a_file_is_not_synced_by_its_directory_nor_its_name_by_the_file() -> None:
    disk = SimulatedDisk()
    disk.create("/a").write(0, b"x")
    disk.sync_directory("/")
    assert outcomes(disk, "/a", data="lost", names="lost") == {b""}
    file = disk.create("/b")
    file.write(0, b"x")
    file.sync()
    assert outcomes(disk, "/b", data="kept", names="lost") == {None}
    assert outcomes(disk, "/b", data="lost", names="kept") == {b"x"}


def test_torn_keeps_every_subset_of_the_blocks() -> None:
    disk, file = disk_with("/a", b"o" * 3 * BLOCK)
    file.write(0, b"n" * 3 * BLOCK)
    found = outcomes(disk, "/a", seeds=200, data="torn", block_bytes=BLOCK)
    assert found == {b"".join(c * BLOCK for c in chosen) for chosen in itertools.product((b"o", b"n"), repeat=3)}
    assert outcomes(disk, "/a", seeds=50, data="torn") == {b"o" * 3 * BLOCK, b"n" * 3 * BLOCK}


def test_torn_shows_versions_between() -> None:
    disk, file = disk_with("/a", b"1" * 10)
    file.write(0, b"2" * 10)
    file.write(0, b"3" * 10)
    assert outcomes(disk, "/a", seeds=100, data="torn") == {b"1" * 10, b"2" * 10, b"3" * 10}


def test_torn_sizes() -> None:
    disk, file = disk_with("/a", b"o" * 100)
    file.write(100, b"n" * 2000)
    kept = outcomes(disk, "/a", seeds=300, data="torn", block_bytes=BLOCK)
    assert {len(found) for found in kept if found is not None} == {100, 512, 1024, 1536, 2048, 2100}
    full = outcomes(disk, "/a", seeds=300, data="torn", block_bytes=BLOCK, size="full")
    assert {len(found) for found in full if found is not None} == {2100}
    assert b"o" * 100 + bytes(412) + b"n" * 512 + bytes(512) + b"n" * 512 + bytes(52) in full


def test_prefix_tears_only_the_next_write() -> None:
    disk, file = disk_with("/a", b"")
    for index in range(4):
        file.write(index * 1000, bytes([index + 1]) * 1000)
    whole = b"".join(bytes([index + 1]) * 1000 for index in range(4))
    found = outcomes(disk, "/a", seeds=300, data="prefix", names="prefix", block_bytes=BLOCK)
    assert {0, 1000, 1024, 1536, 2000, 4000} <= {len(one) for one in found if one is not None}
    assert all(one is not None and whole.startswith(one) for one in found)


def test_what_was_cut_does_not_come_back_with_the_size() -> None:
    disk, file = disk_with("/a", b"o" * 1000)
    file.truncate(10)
    file.truncate(20)
    found = outcomes(disk, "/a", seeds=50, data="prefix", block_bytes=BLOCK)
    assert found == {b"o" * 1000, b"o" * 10, b"o" * 10 + bytes(10)}


def test_prefix_is_one_moment_of_all_files_and_names() -> None:
    disk = SimulatedDisk()
    for index in range(5):
        disk.create(f"/{index}").write(0, b"x")
    for seed in range(60):
        after = disk.crash(CrashPattern("prefix", "prefix", seed=seed)).tree()
        names = sorted(path for path in after if path != "/")
        assert names == [f"/{index}" for index in range(len(names))]
        assert all(after[name] == b"x" for name in names[:-1])


def test_last_keeps_the_last_write_only() -> None:
    disk, file = disk_with("/a", b"")
    file.write(0, b"1" * BLOCK)
    file.write(BLOCK, b"2" * BLOCK)
    assert outcomes(disk, "/a", data="last", block_bytes=BLOCK) == {bytes(BLOCK) + b"2" * BLOCK}


def test_later_writes_of_one_file_without_earlier_ones_of_another() -> None:
    disk = SimulatedDisk()
    for name in "abc":
        disk.create(f"/{name}")
    disk.sync_directory("/")
    for name in "abc":
        disk.open(f"/{name}").write(0, b"x")
    disk.page("/p", 4, writable=True).store(b"page")
    newest = disk.crash(CrashPattern("kept", "kept", files="newest")).tree()
    oldest = disk.crash(CrashPattern("kept", "kept", files="oldest")).tree()
    assert [newest[f"/{name}"] for name in "abc"] == [b"", b"", b"x"]
    assert [oldest[f"/{name}"] for name in "abc"] == [b"x", b"", b""]
    coins = {
        tuple(disk.crash(CrashPattern("coin", "kept", seed=seed)).tree()[f"/{name}"] for name in "abc")
        for seed in range(200)
    }
    assert {pair[:2] for pair in coins} >= {(b"x", b""), (b"", b"x"), (b"x", b"x"), (b"", b"")}


def test_an_unsynced_cut_may_come_back_or_be_overwritten() -> None:
    disk, file = disk_with("/a", b"o" * 1000)
    file.truncate(10)
    file.write(10, b"n" * 10)
    found = outcomes(disk, "/a", seeds=100, data="torn", block_bytes=BLOCK)
    short, new = b"o" * 10, b"n" * 10
    assert {b"o" * 1000, short + new, short} <= found
    assert all(one is not None and one.startswith(short) for one in found)
    assert short + new + bytes(492) + b"o" * 488 in found


def test_an_unsynced_replace_is_undone() -> None:
    disk, _ = disk_with("/a", b"old")
    file = disk.create("/a.new")
    file.write(0, b"new")
    file.sync()
    disk.replace("/a.new", "/a")
    assert outcomes(disk, "/a", names="lost") == {b"old"}
    assert outcomes(disk, "/a", names="kept") == {b"new"}
    disk.sync_directory("/")
    assert outcomes(disk, "/a", names="lost") == {b"new"}


def test_replacing_with_an_unsynced_file_can_leave_an_empty_one() -> None:
    disk, _ = disk_with("/a", b"old")
    disk.create("/a.new").write(0, b"new")
    disk.replace("/a.new", "/a")
    assert outcomes(disk, "/a", data="lost", names="kept") == {b""}


def test_an_unsynced_remove_is_undone() -> None:
    disk, file = disk_with("/a", b"old")
    file.write(3, b"!")
    disk.remove("/a")
    assert outcomes(disk, "/a", names="lost", data="kept") == {b"old!"}
    assert outcomes(disk, "/a", names="kept") == {None}


def test_each_name_on_its_own() -> None:
    disk = SimulatedDisk()
    for name in "abc":
        disk.create(f"/{name}")
    found = {frozenset(disk.crash(CrashPattern("lost", "each", seed=seed)).tree()) - {"/"} for seed in range(200)}
    assert len(found) == 8


def test_names_that_a_replace_joins_stay_in_order() -> None:
    disk = SimulatedDisk()
    disk.create("/a")
    disk.create("/b")
    disk.replace("/a", "/b")
    found = {frozenset(disk.crash(CrashPattern("lost", "each", seed=seed)).tree()) - {"/"} for seed in range(200)}
    assert found == {frozenset(), frozenset({"/a"}), frozenset({"/a", "/b"}), frozenset({"/b"})}


def test_between_two_directories_a_file_has_both_names_but_never_none() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/x")
    disk.make_directory("/y")
    disk.sync_directory("/")
    file = disk.create("/x/a")
    file.write(0, b"1")
    file.sync()
    disk.sync_directory("/x")
    disk.replace("/x/a", "/y/a")
    found = {
        frozenset(disk.crash(CrashPattern("lost", "coin", seed=seed)).tree()) & {"/x/a", "/y/a"} for seed in range(100)
    }
    assert found == {frozenset({"/x/a"}), frozenset({"/y/a"}), frozenset({"/x/a", "/y/a"})}
    target_synced = disk.clone()
    target_synced.sync_directory("/y")
    assert {"/x/a", "/y/a"} <= set(target_synced.crash(CrashPattern("lost", "lost")).tree())
    disk.sync_directory("/x")
    after = disk.crash(CrashPattern("lost", "lost")).tree()
    assert "/x/a" not in after
    assert after["/y/a"] == b"1"


def test_syncing_the_directory_that_a_file_left_syncs_the_other_up_to_there() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/x")
    disk.make_directory("/y")
    disk.sync_directory("/")
    for path in ("/x/a", "/y/before"):
        disk.create(path)
    disk.replace("/x/a", "/y/a")
    disk.create("/y/after")
    disk.sync_directory("/x")
    assert set(disk.crash(CrashPattern()).tree()) == {"/", "/x/", "/y/", "/y/a", "/y/before"}


def test_a_new_file_under_the_name_of_one_that_moved_does_not_hide_it() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/y")
    file = disk.create("/a")
    file.write(0, b"1")
    file.sync()
    disk.sync_directory("/")
    disk.replace("/a", "/y/a")
    disk.create("/a").write(0, b"2")
    for pattern in patterns(random_count=100):
        assert b"1" in disk.crash(pattern).tree().values()


def test_a_file_moved_into_a_directory_that_is_lost_keeps_its_old_name() -> None:
    disk, _ = disk_with("/a", b"1")
    disk.make_directory("/aside")
    disk.replace("/a", "/aside/a")
    disk.sync_directory("/aside")
    for pattern in patterns(random_count=100):
        assert b"1" in disk.crash(pattern).tree().values()


def test_a_directory_needs_its_own_name() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/x/y")
    disk.sync_directory("/x")
    assert set(disk.crash(CrashPattern()).tree()) == {"/"}
    disk.sync_directory("/")
    assert set(disk.crash(CrashPattern()).tree()) == {"/", "/x/", "/x/y/"}


def test_a_page_is_old_new_or_torn() -> None:
    disk = SimulatedDisk()
    page = disk.page("/p", 16, writable=True)
    disk.sync_directory("/")
    page.store(b"1" * 16)
    disk.open("/p").sync()
    for _ in range(200):
        page.store(b"2" * 16)
    found = outcomes(disk, "/p", seeds=200, data="torn")
    contents = {one[4:] for one in found if one is not None}
    assert {b"1" * 16, b"2" * 16, b"1111" + b"2" * 12, b"2" * 4 + b"1" * 8 + b"2" * 4} <= contents
    assert len(disk._file("/p").pending) < 40


# --- the disk around it


def test_locks_end_with_the_process_and_with_the_power() -> None:
    disk = SimulatedDisk()
    held = disk.lock("/lock", b"me")
    for other in (disk.clone(), disk.crash(CrashPattern("kept", "kept")), disk.crash(CrashPattern())):
        lock = other.lock("/lock", b"you")
        with pytest.raises(LockedError, match="you"):
            other.lock("/lock", b"they")
        lock.release()
    with pytest.raises(LockedError, match="me"):
        disk.lock("/lock", b"they")
    held.release()


def test_a_clone_is_independent() -> None:
    disk, file = disk_with("/a", b"old")
    file.write(3, b"1")
    clone = disk.clone()
    file.write(4, b"2")
    file.sync()
    assert clone.tree() == {"/": b"", "/a": b"old1"}
    assert outcomes(clone, "/a", data="lost") == {b"old"}
    clone.open("/a").write(3, b"+++")
    clone.create("/b")
    mapped = clone.map("/a")
    clone.open("/a").truncate(0)
    assert bytes(mapped.data) == b"old+++"
    assert disk.tree() == {"/": b"", "/a": b"old12"}
    assert clone.tree() == {"/": b"", "/a": b"", "/b": b""}
    assert outcomes(disk, "/a", data="lost") == {b"old12"}


def test_a_crash_leaves_the_disk_alone_and_nothing_pending() -> None:
    disk, file = disk_with("/a", b"old")
    file.write(3, b"new")
    disk.create("/b")
    before = disk.digest()
    after = disk.crash(CrashPattern("kept", "kept"))
    after.open("/a").write(0, b"changed")
    after = disk.crash(CrashPattern("torn", "each", seed=1))
    assert disk.digest() == before
    assert {after.crash(pattern).digest() for pattern in patterns()} == {after.digest()}
    after = disk.crash(CrashPattern("lost", "lost"))
    file.sync()
    assert after.tree() == {"/": b"", "/a": b"old"}
    disk.sync_directory("/")
    assert {disk.crash(pattern).digest() for pattern in patterns()} == {before}


def test_operations_are_counted_and_listed() -> None:
    disk = SimulatedDisk(keep_history=True)
    told: list[tuple[int, str]] = []
    disk.on_operation = lambda number, text: told.append((number, text))
    disk.make_directory("/x/y")
    file = disk.create("/x/a")
    file.write(0, b"abc")
    file.truncate(2)
    file.sync()
    disk.replace("/x/a", "/x/b")
    disk.sync_directory("/x")
    disk.remove("/x/b")
    page = disk.page("/p", 4, writable=True)
    page.store(b"abcd")
    disk.lock("/lock", b"").release()
    disk.kind("/p"), disk.list("/"), disk.size("/p"), disk.map("/p"), page.load()
    assert [text for _, text in told] == [
        "make_directory /x",
        "make_directory /x/y",
        "create /x/a",
        "write /x/a",
        "truncate /x/a",
        "sync /x/a",
        "replace /x/a",
        "sync_directory /x",
        "remove /x/b",
        "create /p",
        "page /p",
        "store /p",
        "create /lock",
        "lock /lock",
        "release /lock",
    ]
    assert [number for number, _ in told] == list(range(1, disk.operations + 1))
    assert disk.history[3:7] == ["write /x/a 0+3", "truncate /x/a 2", "sync /x/a", "replace /x/a /x/b"]
    assert SimulatedDisk().history == []


def test_the_hook_may_clone_and_crash_from_any_thread() -> None:
    disk = SimulatedDisk()
    seen: set[bytes] = set()

    def look(number: int, text: str) -> None:
        seen.add(disk.crash(CrashPattern("kept", "kept")).digest())
        assert disk.clone().digest() == disk.digest()

    disk.on_operation = look

    def work(name: str) -> None:
        file = disk.create(f"/{name}")
        for step in range(20):
            file.write(step, b"x")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.operations == len(seen) == 84


def test_a_forgotten_page_leaves_a_hole() -> None:
    disk, file = disk_with("/a", b"old")
    file.write(3, b"lost")
    disk.open("/a").forget_unsynced()  # type: ignore[attr-defined]
    assert disk.tree()["/a"] == b"oldlost"
    file.write(7, b"new")
    file.sync()
    for pattern in patterns():
        assert disk.crash(pattern).tree()["/a"] == b"old\0\0\0\0new"


def test_relative_paths_start_at_the_root() -> None:
    disk = SimulatedDisk()
    disk.make_directory("x")
    disk.create("x/./a")
    assert disk.list("/x/../x/") == [("a", 0)]


# --- patterns


def test_a_pattern_prints_as_itself() -> None:
    for pattern in patterns(seed=5, random_count=50):
        assert eval(repr(pattern)) == pattern


def test_patterns_are_the_same_in_every_run() -> None:
    assert patterns(7, 5) == patterns(7, 5)
    assert patterns(7, 5) != patterns(8, 5)
    assert len(patterns(0, 30)) == len(set(patterns(0, 30)))
    disk, file = disk_with("/a", b"o" * 5000)
    file.write(100, b"n" * 9000)
    assert [disk.crash(pattern).digest() for pattern in patterns(3)] == [
        disk.clone().crash(pattern).digest() for pattern in patterns(3)
    ]


@pytest.mark.parametrize(
    "wrong", [{"data": "most"}, {"names": "zeros"}, {"size": ""}, {"files": 1}, {"block_bytes": 0}]
)
def test_unknown_patterns_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        CrashPattern(**wrong)  # type: ignore[arg-type]


def test_a_crash_is_chosen_in_one_pass() -> None:
    """Many pending writes to a large file: the versions are not kept side by side."""
    changes = [Written(moment, moment * 1000, b"x" * 1000) for moment in range(1, 2000)]
    synced = bytearray(4_000_000)
    pattern = CrashPattern("torn", "kept")
    assert len(survive(synced, [*changes, Truncated(2000, 4_000_001)], pattern, about=0, until=0)) >= 4_000_000


# --- the model


@dataclass
class ModelFile:
    handle: File
    versions: list[bytes]
    unlinked: bool = False


@dataclass
class ModelDirectory:
    """Versions of the names with the moment at which each came to be; the first is the synced one."""

    versions: list[tuple[int, dict[str, int]]] = field(default_factory=lambda: [(0, {})])

    def now(self) -> dict[str, int]:
        return dict(self.versions[-1][1])


PLACES = [(directory, name) for directory in ("/x", "/y") for name in "abc"]
places = st.sampled_from(PLACES)
lengths = st.one_of(st.integers(0, 40), st.integers(0, 1600), st.sampled_from([511, 512, 513, 4096]))
positions = st.one_of(st.integers(0, 40), st.integers(0, 1600), st.sampled_from([512, 1024, 4095, 4096]))


class CrashModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.disk = SimulatedDisk()
        self.files: dict[int, ModelFile] = {}
        self.directories = {path: ModelDirectory() for path in ("/x", "/y")}
        self.moves: list[tuple[int, str, str]] = []
        self.moment = self.fill = self.steps = 0
        for path in self.directories:
            self.disk.make_directory(path)
        self.disk.sync_directory("/")

    def holds(self, place: tuple[str, str]) -> int | None:
        return self.directories[place[0]].versions[-1][1].get(place[1])

    def change(self, *changes: tuple[str, str, int | None]) -> None:
        """One new version of each directory that the changes touch, all of the same moment."""
        self.moment += 1
        for directory in {directory for directory, _, _ in changes}:
            names = self.directories[directory].now()
            for _, name, node in (change for change in changes if change[0] == directory):
                if node is None:
                    del names[name]
                else:
                    names[name] = node
            self.directories[directory].versions.append((self.moment, names))

    @rule(place=places)
    def create(self, place: tuple[str, str]) -> None:
        if self.holds(place) is None:
            path = "/".join(place)
            handle = self.disk.create(path)
            number = self.disk._node(path).number
            self.files[number] = ModelFile(handle, [b""])
            self.change((*place, number))

    @precondition(lambda self: self.files)
    @rule(data=st.data(), position=positions, length=lengths)
    def write(self, data: st.DataObject, position: int, length: int) -> None:
        file = self.files[data.draw(st.sampled_from(sorted(self.files)))]
        self.fill = self.fill % 255 + 1
        written = bytes([self.fill]) * length
        assert file.handle.write(position, written) == length
        before = file.versions[-1]
        if length:
            before = before.ljust(position, b"\0")
            before = before[:position] + written + before[position + length :]
        file.versions.append(before)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), size=positions)
    def truncate(self, data: st.DataObject, size: int) -> None:
        file = self.files[data.draw(st.sampled_from(sorted(self.files)))]
        file.handle.truncate(size)
        file.versions.append(file.versions[-1][:size].ljust(size, b"\0"))

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        file = self.files[data.draw(st.sampled_from(sorted(self.files)))]
        file.handle.sync()
        del file.versions[:-1]

    @rule(source=places, onto=places)
    def replace(self, source: tuple[str, str], onto: tuple[str, str]) -> None:
        moved, there = self.holds(source), self.holds(onto)
        if moved is None or source == onto:
            return
        self.disk.replace("/".join(source), "/".join(onto))
        if there is not None:
            self.files[there].unlinked = True
        self.change((*source, None), (*onto, moved))
        if source[0] != onto[0]:
            self.moves.append((self.moment, source[0], onto[0]))

    @rule(place=places)
    def remove(self, place: tuple[str, str]) -> None:
        number = self.holds(place)
        if number is not None:
            self.disk.remove("/".join(place))
            self.files[number].unlinked = True
            self.change((*place, None))

    @rule(directory=st.sampled_from(["/x", "/y"]))
    def sync_directory(self, directory: str) -> None:
        self.disk.sync_directory(directory)
        self.commit(directory, self.moment)

    def commit(self, directory: str, until: int) -> None:
        """Versions up to a moment cannot come back, and a file that left has arrived elsewhere."""
        versions = self.directories[directory].versions
        while len(versions) > 1 and versions[1][0] <= until:
            del versions[0]
        for move in [move for move in self.moves if move[0] <= until and move[1] == directory]:
            if move in self.moves:
                self.moves.remove(move)
                self.commit(move[2], move[0])

    @invariant()
    def every_crash_is_allowed(self) -> None:
        before = self.disk.digest()
        self.steps += 1
        for pattern in patterns(self.steps, random_count=6):
            after = self.disk.crash(pattern)
            self.check_names(after, pattern)
            self.check_contents(after, pattern)
        assert self.disk.digest() == before

    @rule(pattern=st.sampled_from(patterns()))
    def go_on_after_a_crash(self, pattern: CrashPattern) -> None:
        """The machine starts again: what the crash left is what is synced now."""
        self.disk = self.disk.crash(pattern)
        contents = self.disk.tree()
        self.files = {}
        for path, directory in self.directories.items():
            names = dict(self.disk._directory(path).names)
            directory.versions = [(self.moment, names)]
            for name, number in names.items():
                full = f"{path}/{name}"
                self.files[number] = ModelFile(self.disk.open(full), [contents[full]])
        self.moves = []

    @rule()
    def compare(self) -> None:
        for path, directory in self.directories.items():
            names = directory.now()
            assert self.disk.list(path) == [(n, len(self.files[names[n]].versions[-1])) for n in sorted(names)]
            for name, number in names.items():
                assert self.disk.map(f"{path}/{name}").data == self.files[number].versions[-1]

    def check_names(self, after: SimulatedDisk, pattern: CrashPattern) -> None:
        reachable: set[int] = set()
        for path, directory in self.directories.items():
            found = after._directory(path).names
            versions = [names for _, names in directory.versions]
            for name in "abc":
                assert found.get(name) in {names.get(name) for names in versions}
            if pattern.names == "lost":
                assert found == versions[0]
            elif pattern.names == "kept":
                assert found == versions[-1]
            elif pattern.names == "prefix":
                assert found in versions
            reachable.update(found.values())
        synced = {n for directory in self.directories.values() for n in directory.versions[0][1].values()}
        assert {n for n in synced if not self.files[n].unlinked} <= reachable

    def check_contents(self, after: SimulatedDisk, pattern: CrashPattern) -> None:
        contents = after.tree()
        for path in self.directories:
            for name, number in after._directory(path).names.items():
                check_content(contents[f"{path}/{name}"], self.files[number].versions, pattern)


def made_of(found: bytes, versions: list[bytes]) -> bool:
    """Whether each block is one that a version had, with zeros after the version's end."""
    ranges = [(begin, min(begin + BLOCK, len(found))) for begin in range(0, len(found), BLOCK)]
    return all(
        any(found[begin:end] == version[begin:end].ljust(end - begin, b"\0") for version in versions)
        for begin, end in ranges
    )


def check_content(found: bytes, versions: list[bytes], pattern: CrashPattern) -> None:
    sizes = [len(version) for version in versions]
    assert min(sizes) <= len(found) <= max(sizes)
    assert made_of(found, versions)
    if pattern.data == "lost":
        assert found == versions[0]
    if pattern.files != "all":
        return
    if pattern.data == "kept":
        assert found == versions[-1]
    if pattern.data in {"zeros", "last"} or (pattern.data == "torn" and pattern.size == "full"):
        assert len(found) == sizes[-1]
    if pattern.data == "zeros":
        assert made_of(found, versions[:1])
    if pattern.data == "last":
        assert made_of(found, [versions[0], versions[-1]])
    if pattern.data == "prefix":
        pairs = zip(versions, [*versions[1:], versions[-1]], strict=True)
        assert any(len(found) >= len(old) and made_of(found, [old, new]) for old, new in pairs)


TestCrashModel = CrashModel.TestCase
TestCrashModel.settings = settings(stateful_step_count=30)
