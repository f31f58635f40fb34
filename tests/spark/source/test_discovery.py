"""Which logs a read finds: several paths, wildcards, stores, and directories of streams as RabbitMQ has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.spark.source.discovery import disk_of, find_places
from duramen.spark.source.options import parse_options
from tests.conftest import DATA
from tests.spark.source.test_stream_restart import grow
from tests.spark.source_logs import read_here, write_log
from tests.spark.stream_query import Query


def places(path: Path | str, **options: Any) -> list[tuple[str, int]]:
    parsed = parse_options({"path": str(path), **{k: str(v) for k, v in options.items()}}, streaming=False)
    return [place[:2] for place in find_places(parsed, *disk_of(parsed.path))]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("discovery")
    for name in ("h1/orders", "h1/clicks", "h2/orders", "h2/x[1]"):
        write_log(root / name, "keratin", 10)
    for topic, number in (("orders", 0), ("orders", 1), ("clicks", 0)):
        path = root / "store" / "topics" / topic / "partitions" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_log(path, "keratin", 10)
    streams = root / "rabbit" / "stream"
    for name, data in (("__invoices_17", "plain"), ("__orders_18", "subbatch")):
        shutil.copytree(DATA / "osiris" / data, streams / name)
    return root


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("h1/orders", [("orders", 0)]),
        ("h1/*", [("clicks", 0), ("orders", 0)]),
        ("h1/*s", [("clicks", 0), ("orders", 0)]),
        ("h1/c?icks", [("clicks", 0)]),
        ("h*/orders", [("h1/orders", 0), ("h2/orders", 0)]),
        ("h[12]/orders", [("h1/orders", 0), ("h2/orders", 0)]),
        ("{h1,h2}/orders", [("h1/orders", 0), ("h2/orders", 0)]),
        ("h1/{clicks,orders}", [("clicks", 0), ("orders", 0)]),
        ("h2/x[1]", [("x[1]", 0)]),
        ("store/topics/*/partitions/*", [("clicks", 0), ("orders", 0), ("orders", 1)]),
        ("rabbit/stream/*", [("__invoices_17", 0), ("__orders_18", 0)]),
    ],
)
def test_wildcards(root: Path, pattern: str, found: list[tuple[str, int]]) -> None:
    """A log is called by what lies below the part without wildcards; a path that exists is not a pattern."""
    assert places(root / pattern) == found


def test_several_paths(root: Path) -> None:
    def several(*names: str) -> list[tuple[str, int]]:
        parsed = parse_options({"paths": json.dumps([str(root / name) for name in names])}, streaming=False)
        return [place[:2] for place in find_places(parsed, *disk_of(parsed.path))]

    assert several("h1/clicks", "h2/orders") == [("clicks", 0), ("orders", 0)]
    assert several("h1/clicks", "h1/*") == [("clicks", 0), ("orders", 0)]
    with pytest.raises(DuramenError, match=r"two logs are orders/0: .*h1/orders and .*h2/orders"):
        several("h1/orders", "h2/orders")
    with pytest.raises(DuramenError, match="nowhere: no such file or directory"):
        several("h1/orders", "nowhere")
    for wrong in ("/a", "[]", "[1]", '{"a": 1}'):
        with pytest.raises(DuramenError, match=r"option paths=.* is not valid"):
            parse_options({"paths": wrong}, streaming=False)
    with pytest.raises(DuramenError, match="the paths lie on several file systems: /a, s3://b/c"):
        find_places(parse_options({"paths": '["/a", "s3://b/c"]'}, streaming=False), *disk_of("/a"))


def test_rows_of_many_logs(root: Path) -> None:
    table = read_here(root / "h*/orders", columns="topic,offset").to_pylist()
    assert [(row["topic"], row["offset"]) for row in table] == [
        (topic, offset) for topic in ("h1/orders", "h2/orders") for offset in range(10)
    ]
    ends = {"h1/orders": {"0": 8}}
    assert len(read_here(root / "h*/orders", startingOffsets=json.dumps(ends))) == 12


def test_nothing_matches(root: Path) -> None:
    with pytest.raises(DuramenError, match=r"none\*: no directory matches \(check option path\)"):
        places(root / "none*")
    with pytest.raises(DuramenError, match="no directory matches"):
        places(root / "*/none")


def test_streams_of_rabbitmq_are_topics(root: Path) -> None:
    streams = root / "rabbit" / "stream"
    assert places(streams, subscribe="__orders_18") == [("__orders_18", 0)]
    assert places(streams, subscribePattern=".*_orders_.*") == [("__orders_18", 0)]
    assert places(streams, subscribePattern=".*") == [("__invoices_17", 0), ("__orders_18", 0)]
    assert places(streams, assign='{"__invoices_17": [0]}') == [("__invoices_17", 0)]
    with pytest.raises(DuramenError, match=r"'orders' does not exist \(directories of logs: __invoices_17, "):
        places(streams, subscribe="orders")
    with pytest.raises(DuramenError, match="partition __orders_18/1 does not exist"):
        places(streams, assign='{"__orders_18": [1]}')
    read = read_here(streams, subscribePattern=".*orders.*", columns="topic,partition,offset,value")
    alone = read_here(streams / "__orders_18", columns="topic,partition,offset,value")
    assert read.num_rows > 100
    assert read == alone


def test_topics_of_several_stores(root: Path) -> None:
    assert places(root / "st*", subscribePattern="orders") == [("orders", 0), ("orders", 1)]
    with pytest.raises(DuramenError, match="not a store"):
        places(root / "h1/orders", subscribePattern=".*")


def test_a_stream_finds_new_directories(tmp_path: Path) -> None:
    """A wildcard is looked up at every trigger: what is new is read from its first record."""
    one = write_log(tmp_path / "a" / "log", "keratin", 10)
    query = Query()
    assert query.run(tmp_path / "*" / "log") == 10
    grow(one, 5)
    write_log(tmp_path / "b" / "log", "keratin", 7)
    assert query.run(tmp_path / "*" / "log") == 12
    shutil.rmtree(one)
    with pytest.raises(DuramenError, match="data loss: partition a/log/0, which was read up to offset 15"):
        query.run(tmp_path / "*" / "log")
    assert sorted(query.offsets()) == sorted([*range(15), *range(7)])
