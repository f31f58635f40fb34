"""A wrong argument of any public call raises an error of Duramen, never a raw TypeError from somewhere below.

Every parameter of every public call gets every wrong value; a call may accept a value that means something to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import duramen
import duramen.aio
from duramen.formats import FORMATS
from duramen.log import WritableLog as EngineLog
from duramen.testing import SimulatedDisk

WRONG: list[Any] = [
    None, object(), "text", "", "\udc80", "a\0b", b"bytes", -1, 2**70, -(2**70), 1.5, float("nan"), float("inf"), True,
    [1], {}, (1, 2), timedelta(1),
]  # fmt: skip
WAITING = ("timeout_s", "follow")
"""Parameters for which some of these values would wait."""

Call = Callable[..., Any]
Refused = Callable[..., None]


def attempt(what: str, call: Call) -> Any:
    try:
        found = call()
        return next(found, None) if hasattr(found, "__next__") else found
    except duramen.DuramenError:
        return None
    except Exception as error:  # noqa: BLE001
        pytest.fail(f"{what}: {error!r}")


def sweep(call: Call, *, skip: tuple[str, ...] = (), **right: Any) -> None:
    """Call it with each wrong value for each parameter, and with the right ones for the others."""
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or parameter.name in (*WAITING, *skip):
            continue
        for wrong in WRONG:
            what = f"{call.__name__}({parameter.name}={wrong!r:.40})"
            found = attempt(what, lambda name=parameter.name, wrong=wrong: call(**{**right, name: wrong}))
            if isinstance(found, duramen.Log | duramen.Store):
                found.close()


def in_memory(**options: Any) -> duramen.WritableLog:
    return duramen.open("/new", "a", disk=SimulatedDisk(), **options)


@pytest.fixture
def log() -> Iterator[duramen.WritableLog]:
    with duramen.open("/log", "a", disk=SimulatedDisk(), segment_max_bytes=200, durability="write") as log:
        log.append_batch([b"0123456789" * 5] * 20)
        yield log


def test_options_of_the_writer() -> None:
    taken = inspect.signature(EngineLog.__init__).parameters.keys() - {"self", "path", "options", "disk"}
    for name in sorted(taken):
        for wrong in WRONG:
            options = {"disk": SimulatedDisk(), name: wrong}
            opened = attempt(f"open({name}={wrong!r:.40})", lambda o=options: duramen.open("/log", "a", **o))
            if opened is not None:
                attempt(f"append({name}={wrong!r:.40})", lambda log=opened: log.append(b"value"))
                opened.close()
    for wrong in WRONG[1:]:
        attempt(f"open(disk={wrong!r:.40})", lambda disk=wrong: duramen.open("/log", "a", disk=disk))


@pytest.mark.parametrize("format", FORMATS)
def test_options_of_a_format(format: str) -> None:
    for name in FORMATS[format].option_names:
        for wrong in WRONG:
            options = {"record_size": 8} if format == "fixed-slot" else {}
            options |= {"disk": SimulatedDisk(), name: wrong}
            make = partial(duramen.open, "/log", "a", format=format, **options)
            opened = attempt(f"open({name}={wrong!r:.40})", make)
            if opened is not None:
                attempt(f"append({name}={wrong!r:.40})", lambda log=opened: log.append(b"12345678"))
                opened.close()


def test_calls_for_a_whole_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with duramen.open("log", "a") as log:
        log.append(b"value")
    sweep(duramen.open, path="log")
    sweep(duramen.detect, path="log")
    sweep(duramen.verify, path="log", skip=("publish",))
    sweep(duramen.repair, path="log", skip=("plan_only",))
    sweep(duramen.convert, src="log", dst="log", to="keratin")  # where a log is, none is created
    sweep(duramen.copy, src="log", dst="log")
    sweep(duramen.aio.open, path="log")
    sweep(duramen.Store, path=tmp_path / "store")
    for kind in (duramen.Retention, duramen.Compaction):
        sweep(kind)


@pytest.mark.parametrize("mode", ["r", "a"])
def test_reading(log: duramen.WritableLog, mode: str) -> None:
    if mode == "r":
        log.sync()
    with duramen.open("/log", disk=log.disk) if mode == "r" else log as reader:
        for call in (reader.read, reader.locate):
            sweep(call, offset=0)
        sweep(reader.scan)
        sweep(reader.batches)
        sweep(reader.offset_at, timestamp=0)
        for wrong in ("a", None, float("nan"), [], True):
            attempt(f"wait({wrong!r})", lambda wrong=wrong: reader.wait(wrong))


def test_appending(log: duramen.WritableLog) -> None:
    producer = log.producer("p")
    for wrong in (*WRONG, [b"x", 3], [(3, b"x")], [(b"k", 3)], [(b"k", b"v"), 3]):
        what = f"append({wrong!r:.40})"
        attempt(what, lambda wrong=wrong: log.append_batch(wrong))
        attempt(what, lambda wrong=wrong: log.append_batch([wrong]))
        attempt(what, lambda wrong=wrong: log.append(b"x", headers=[wrong]))
        attempt(what, lambda wrong=wrong: log.append(b"x", headers=[("h", wrong)]))
        attempt(what, lambda wrong=wrong: log.append_once([wrong], writer="w", batch=5))
        attempt(what, lambda wrong=wrong: log.append(b"x", timeout_s=wrong))
    sweep(log.append, value=b"x", durability="write")
    sweep(log.append_batch, data=[b"x"], durability="write")
    sweep(log.append_once, data=[[b"x"]], writer="w", batch=1)
    sweep(producer.append, value=b"x", durability="write")
    sweep(producer.append_batch, data=[b"x"], durability="write")
    sweep(log.producer, name="p")
    sweep(log.retain)
    sweep(log.compact)


def test_consumers(log: duramen.WritableLog) -> None:
    sweep(log.cursor, name="c")
    sweep(log.cursor("c").store, offset=1)
    sweep(log.group, name="g")
    taken = inspect.signature(duramen.Group.__init__).parameters.keys() - {"self", "log", "name"}
    for number, (name, wrong) in enumerate((name, wrong) for name in sorted(taken) for wrong in WRONG):
        options = {"max_attempts": 1, "dead_letter": "dead"} if name in ("max_attempts", "dead_letter") else {}
        options[name] = wrong
        attempt(f"group({name}={wrong!r:.40})", lambda n=f"g{number}", o=options: log.group(n, **o).fetch(1))
    group = log.group("other", lease=600, durability="write")
    for call in (group.fetch, group.fetch_batch, group.begin):
        sweep(call)
    sweep(group.reset, to=0)
    for call in (group.ack, group.ack_many, group.nack, group.extend):
        sweep(call, handed=0)
    for wrong in ("a", None, float("nan"), 2**70, -1, []):
        attempt(f"fetch(timeout_s={wrong!r})", lambda wrong=wrong: log.group("new").fetch(1, timeout_s=wrong))


def test_topics(tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store", durability="write") as store:
        topic = store.create("t", partitions=2)
        sweep(store.create, name="t")
        sweep(store.topic, name="t")
        sweep(store.describe, name="t")
        sweep(store.add_partitions, name="t", partitions=2)
        sweep(store.delete, name="missing")
        sweep(topic.append, value=b"x")
        sweep(topic.append_batch, data=[b"x"])
        sweep(topic.read, partition=0, offset=0)
        for call in (topic.scan, topic.batches):
            sweep(call)
        sweep(topic.group, name="g")
        group = topic.group("g")
        for wrong in WRONG:
            attempt(f"scan(from_offset={wrong!r:.40})", lambda wrong=wrong: topic.scan(from_offset=wrong))
        for call in (group.fetch, group.fetch_batch):
            sweep(call)
        for call in (group.ack, group.ack_many, group.nack, group.extend):
            sweep(call, handed=group.fetch(1)[:1])


# --- what the errors say


def test_only_a_reader_pays_for_saying_so() -> None:
    """With ``__getattr__`` on its class, Python looks up every attribute of an append in a slow way."""
    assert not hasattr(duramen.WritableLog, "__getattr__")


def test_a_reader_says_that_it_cannot_append(log: duramen.WritableLog) -> None:
    with duramen.open("/log", disk=log.disk) as reader:
        for name in ("append", "append_batch", "append_once", "sync", "seal", "retain", "compact", "producer"):
            assert not hasattr(reader, name)
            with pytest.raises(duramen.ReadOnlyError) as caught:
                getattr(reader, name)
            assert str(caught.value) == (
                f"{log.path}: {name} needs a log that is open for append, and this one is open for reading "
                '(open it with mode "a")'
            )
        with pytest.raises(AttributeError, match="no attribute 'appendix'"):
            reader.appendix  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda log: log.retain(3600), "retention must be of type Retention (got 3600) (such as duramen.Retention"),
        (lambda log: log.group("g", lease="30s"), "lease must be 0 to 315360000 seconds (got '30s')"),
        (lambda log: log.cursor("c").store("a"), "the offset of a cursor must be a whole number (got 'a')"),
        (lambda log: log.read("a"), "offset must be a whole number (got 'a')"),
        (lambda log: list(log.scan(max_records=-1)), "max_records must be at least 0 (got -1)"),
        (lambda log: log.group("g").fetch(2**63), "max must be 1 to 9223372036854775807 (got 9223372036854775808)"),
        (lambda log: log.group("g").stuck(attempts="x"), "attempts must be a whole number (got 'x')"),
        (lambda log: log.append(3), "a value is bytes, text or None, not int"),
        (lambda log: log.append(b"v", timeout_s="5"), "timeout_s must be a number of seconds (got '5')"),
        (lambda log: log.producer("p").append(b"v", sequence=-1), "(got -1)"),
        (lambda log: duramen.open(3), "a path is text, bytes or a path object, not 3"),
        (lambda log: in_memory(segment_max_bytes=1.5), "segment_max_bytes must be of type int (got 1.5)"),
        (lambda log: in_memory(clock=lambda: 1.5), "clock must return whole nanoseconds since 1970"),
    ],
)
def test_messages(log: duramen.WritableLog, call: Call, message: str) -> None:
    with pytest.raises(duramen.UsageError) as caught:
        call(log)
    assert message in str(caught.value)
