"""Below the directory of a log no link is followed, nothing but regular files is opened, and a directory that is moved
is still the one that was opened."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from duramen.disk import PosixDisk
from duramen.disk.vfs import Disk, Kind, rooted
from duramen.errors import StorageError
from duramen.testing.faulty_disk import FaultyDisk

Opening = Callable[[Disk, str], object]

OPENINGS: dict[str, Opening] = {
    "map": lambda disk, path: disk.map(path),
    "open": lambda disk, path: disk.open(path),
    "create": lambda disk, path: disk.create(path),
    "lock": lambda disk, path: disk.lock(path, b"me"),
    "gate": lambda disk, path: disk.gate(path).take(b"me"),
    "is_locked": lambda disk, path: disk.is_locked(path),
    "page": lambda disk, path: disk.page(path, 4, writable=True),
    "page for reading": lambda disk, path: disk.page(path, 4, writable=False),
}


def put_special(path: Path, what: str, target: Path) -> None:
    if what == "a symbolic link":
        path.symlink_to(target)
    elif what == "a FIFO":
        os.mkfifo(path)
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)


@pytest.fixture(params=["within", "rooted", "faulty"])
def inside(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    (tmp_path / "log/.duramen").mkdir(parents=True)
    (tmp_path / "target").write_bytes(b"keep me")
    disk: Disk = FaultyDisk(PosixDisk()) if request.param == "faulty" else PosixDisk()
    root = str(tmp_path / "log")
    return disk.within(root) if request.param == "within" else disk.rooted(root)


@pytest.mark.parametrize("what", ["a symbolic link", "a FIFO", "a socket"])
@pytest.mark.parametrize("name", ["0.log", ".duramen/lock"])
@pytest.mark.parametrize("how", OPENINGS)
def test_only_regular_files_are_opened(tmp_path: Path, inside: Disk, what: str, name: str, how: str) -> None:
    path = tmp_path / "log" / name
    put_special(path, what, tmp_path / "target")
    assert inside.kind(str(path)) == Kind.OTHER
    with pytest.raises(StorageError) as caught:
        OPENINGS[how](inside, str(path))
    assert caught.value.path == str(path)
    assert f"this is {what}" in str(caught.value)
    assert (tmp_path / "target").read_bytes() == b"keep me"
    directory, _, last = name.rpartition("/")
    assert list(inside.specials(str(tmp_path / "log" / directory))) == [(last, what)]
    assert inside.list(str(tmp_path / "log"), (".duramen",)) == []


@pytest.mark.parametrize("how", [*OPENINGS, "list", "directories", "sync_directory", "make_directory", "remove"])
def test_a_directory_that_is_a_link_is_not_entered(tmp_path: Path, inside: Disk, how: str) -> None:
    (tmp_path / "log/.duramen").rmdir()
    (tmp_path / "elsewhere/lower").mkdir(parents=True)
    (tmp_path / "elsewhere/lock").write_bytes(b"keep me")
    (tmp_path / "log/.duramen").symlink_to(tmp_path / "elsewhere")
    root = str(tmp_path / "log")
    assert inside.kind(f"{root}/.duramen") == Kind.OTHER
    assert inside.kind(f"{root}/.duramen/lock") == Kind.MISSING
    assert inside.directories(root) == []
    looking: dict[str, Opening] = {
        "list": lambda disk, path: disk.list(f"{root}/.duramen"),
        "directories": lambda disk, path: disk.directories(f"{root}/.duramen"),
        "sync_directory": lambda disk, path: disk.sync_directory(f"{root}/.duramen"),
        "make_directory": lambda disk, path: disk.make_directory(f"{root}/.duramen/more"),
        "remove": lambda disk, path: disk.remove(path),
    }
    with pytest.raises(StorageError) as caught:
        (OPENINGS | looking)[how](inside, f"{root}/.duramen/lock")
    assert caught.value.path == f"{root}/.duramen"
    assert "this is a symbolic link" in str(caught.value)
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["lock", "lower"]
    assert (tmp_path / "elsewhere/lock").read_bytes() == b"keep me"


def test_renaming_over_a_link_replaces_the_link(tmp_path: Path, inside: Disk) -> None:
    root = str(tmp_path / "log")
    (tmp_path / "log/.duramen/log.json").symlink_to(tmp_path / "target")
    file = inside.create(f"{root}/.duramen/log.json.new")
    file.write(0, b"new")
    file.close()
    inside.replace(f"{root}/.duramen/log.json.new", f"{root}/.duramen/log.json")
    assert not (tmp_path / "log/.duramen/log.json").is_symlink()
    assert bytes(inside.map(f"{root}/.duramen/log.json").data) == b"new"
    assert (tmp_path / "target").read_bytes() == b"keep me"


def test_a_path_cannot_lead_out_of_the_root(tmp_path: Path, inside: Disk) -> None:
    """Names of files are read from markers and journals, which may come from strangers."""
    root = str(tmp_path / "log")
    for act in (
        lambda: inside.remove(f"{root}/../target"),
        lambda: inside.replace(f"{root}/.duramen/../../target", f"{root}/0.log"),
        lambda: inside.map(f"{root}/.duramen/../../target"),
    ):
        with pytest.raises(StorageError, match="leads out of the log's directory"):
            act()
    assert (tmp_path / "target").exists()


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real/segments").mkdir(parents=True)
    (tmp_path / "real/segments/0.log").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for root in (f"{tmp_path}/link", f"{tmp_path}/link/", f"{tmp_path}//./link"):
        for disk in (PosixDisk().within(root), PosixDisk().rooted(root)):
            assert disk.kind(root) == Kind.DIRECTORY
            assert disk.list(root, ("segments",)) == [("segments/0.log", 5)]
            assert bytes(disk.map(f"{root}/segments/0.log").data) == b"bytes"
            assert bytes(disk.map(f"{tmp_path}/link/segments/0.log").data) == b"bytes"


def test_a_moved_root_is_still_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("log/.duramen")
    disk = PosixDisk().rooted("log")
    os.rename("log", "moved")
    os.mkdir("log")
    monkeypatch.chdir("/")
    disk.create("log/0.log").close()
    disk.create("log/.duramen/lock").close()
    disk.make_directory("log/segments/deep")
    disk.replace("log/0.log", "log/segments/deep/1.log")
    disk.sync_directory("log")
    assert disk.list("log", (".duramen",)) == [(".duramen/lock", 0)]
    assert sorted(os.listdir(tmp_path / "moved")) == [".duramen", "segments"]
    assert os.listdir(tmp_path / "log") == []


def test_without_its_root_a_disk_goes_by_the_path(tmp_path: Path) -> None:
    root = tmp_path / "log"
    root.mkdir()
    with rooted(PosixDisk(), str(root)) as disk:
        root.rename(tmp_path / "moved")
        root.mkdir()
        disk.create(f"{root}/a").close()
    disk.create(f"{root}/b").close()
    assert (os.listdir(tmp_path / "moved"), os.listdir(root)) == (["a"], ["b"])


def test_a_root_that_is_missing(tmp_path: Path) -> None:
    disk = PosixDisk().within(f"{tmp_path}/log")
    assert disk.kind(f"{tmp_path}/log") == disk.kind(f"{tmp_path}/log/.duramen/lock") == Kind.MISSING
    with pytest.raises(StorageError) as caught:
        disk.rooted(f"{tmp_path}/log")
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, f"{tmp_path}/log")
    disk.make_directory(f"{tmp_path}/log/.duramen")
    assert disk.kind(f"{tmp_path}/log/.duramen") == Kind.DIRECTORY


def test_descriptors_are_closed(tmp_path: Path) -> None:
    (tmp_path / "log/.duramen/deep").mkdir(parents=True)
    root = f"{tmp_path}/log"
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("no /proc")
    for disk in (PosixDisk().within(root), PosixDisk().rooted(root)):
        for path in (f"{root}/.duramen/deep/none", f"{root}/none/none/none"):
            assert disk.kind(path) == Kind.MISSING
            with pytest.raises(StorageError):
                disk.map(path)
        disk.list(f"{root}/.duramen")
        disk.unroot()
    assert len(os.listdir("/proc/self/fd")) == before
