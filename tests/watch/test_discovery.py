"""Which logs there are to look at, and that a name is never taken for a path."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import StorageError, UsageError
from duramen.watch import discovery
from duramen.watch.discovery import WatchedPaths
from tests.watch.building import many_topics


def test_a_log_and_a_store(tmp_path: Path) -> None:
    duramen.open(tmp_path / "log", "a").close()
    store = many_topics(tmp_path / "store", 3)
    found = WatchedPaths(PosixDisk(), [str(tmp_path / "log"), str(store)])
    assert [place.name.removeprefix(str(tmp_path)) for place in found.all()] == [
        "/log", "/store#topic-0000/0", "/store#topic-0001/0", "/store#topic-0002/0",
    ]  # fmt: skip
    assert Path(found.get(f"{store}#topic-0001/0").path).is_dir()


def test_a_topic(tmp_path: Path) -> None:
    store = many_topics(tmp_path / "store", 3)
    given = [f"{store}#topic-0001", f"{store}#topic-0002/0", f"{store}#missing"]
    assert [place.name for place in WatchedPaths(PosixDisk(), given).all()] == [f"{given[0]}/0", given[1], given[2]]
    (place,) = WatchedPaths(PosixDisk(), [f"{store}/topics/topic-0001"]).all()  # the directory of the topic
    assert place.path == f"{store}/topics/topic-0001/partitions/0"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../log", "log/../log", "{root}/log/", "{root}/./log", "{root}"])
def test_only_what_is_listed_can_be_had(tmp_path: Path, name: str) -> None:
    duramen.open(tmp_path / "log", "a").close()
    duramen.open(tmp_path / "other", "a").close()
    found = WatchedPaths(PosixDisk(), [str(tmp_path / "log")])
    with pytest.raises(UsageError, match="no such log"):
        found.get(name.format(root=tmp_path))
    with pytest.raises(UsageError, match="no such log"):
        found.get(str(tmp_path / "other"))


def test_topics_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LISTED_FOR_S", 0.0)
    store = duramen.Store(str(many_topics(tmp_path / "store", 2)))
    found = WatchedPaths(PosixDisk(), [str(tmp_path / "store")])
    assert len(found.all()) == 2
    store.create("fresh", format="durable-log")
    assert len(found.all()) == 3
    store.close()


def test_one_missing_path_is_listed(tmp_path: Path) -> None:
    duramen.open(tmp_path / "log", "a").close()
    found = WatchedPaths(PosixDisk(), [str(tmp_path / "log"), str(tmp_path / "nothing")])
    assert [place.path for place in found.all()] == [str(tmp_path / "log"), str(tmp_path / "nothing")]


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        WatchedPaths(PosixDisk(), [])
    with pytest.raises(StorageError, match="no such file"):
        WatchedPaths(PosixDisk(), [str(tmp_path / "nothing")])
