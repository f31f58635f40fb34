"""`python -m tests.interop.values`: what clients publish to a real RabbitMQ, decoded by Duramen from the files and
compared with what the same clients make of it.

- `rstream` publishes every body and type of AMQP 1.0, encoded by its own encoder and by ours, and consumes them.
- RabbitMQ's Java client publishes a property of every type that it has, and consumes them.
- `pika` publishes over AMQP 0.9.1 into a queue of type stream; the broker converts. It consumes over 0.9.1.

Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import struct
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duramen
from tests.interop import broker as broker_module
from tests.interop import client as client_module
from tests.interop.broker import HOST, Broker
from tests.interop.client import Client
from tests.interop.java import JavaClient
from tests.values import amqp_messages as amqp

INTS = {"ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long"}


class Comparison:
    """Counts what is compared, and keeps what differs."""

    def __init__(self) -> None:
        self.count = 0
        self.failed: list[str] = []
        self.unread: dict[str, set[bytes]] = {"rstream": set(), "Java": set()}
        """Messages that a client does not decode."""

    def check(self, what: str, ours: Any, theirs: Any) -> None:
        self.count += 1
        if ours != theirs:
            self.failed.append(f"{what}: Duramen {ours!r}, the client {theirs!r}")


# --- rstream


def rstream_messages() -> list[Any]:
    """Bodies of all kinds and properties, by the client's own encoder."""
    from rstream import AMQPMessage
    from rstream._pyamqp.message import Properties

    values = [None, True, 5, -5, 2**40, 1.5, "grün", b"\xff", uuid.UUID(int=7), ["a", 1, [True]], {"k": "v", "n": 2}]
    properties = Properties(
        message_id="id", user_id=b"guest", to="to", subject="subject", reply_to="reply", correlation_id=b"corr",
        content_type="text/plain", content_encoding="gzip", absolute_expiry_time=1_800_000_000_000,
        creation_time=1_700_000_000_123, group_id="g", group_sequence=9, reply_to_group_id="rg",
    )  # fmt: skip
    full = AMQPMessage(
        body=b"with everything", properties=properties,
        application_properties={"s": "text", "i": 7, "b": False, "f": 0.25, "raw": b"\xff", "u": uuid.UUID(int=9)},
        message_annotations={b"x-opt": "annotation"},
    )  # fmt: skip
    return [
        full, AMQPMessage(body=b""), AMQPMessage(body=b"x" * 300),
        *(AMQPMessage(value=value) for value in values if value is not None),
        AMQPMessage(sequence=[[1, "two"], [b"3"]]),
    ]  # fmt: skip


def raw_messages() -> list[bytes]:
    """Every type as a value, as a property and in sequences, by the encoder of our tests."""
    pairs = [(amqp.text(name), encoded) for name, (encoded, _) in amqp.SCALARS.items()]
    symbols = [(amqp.symbol(name), encoded) for name, (encoded, _) in amqp.SCALARS.items()]
    return [
        *(amqp.section(0x77, encoded) for encoded, _ in amqp.SCALARS.values()),
        *(amqp.section(0x74, amqp.map_of([pair])) + amqp.data(b"body") for pair in pairs),
        *(amqp.section(0x72, amqp.map_of([pair])) + amqp.data(b"body") for pair in symbols),
        amqp.data(b"one ") + amqp.data(b"two"),
        amqp.section(0x76, amqp.list_of([encoded for encoded, _ in amqp.SCALARS.values()])),
        amqp.section(0x76, amqp.list_of([b"\x41"])) + amqp.section(0x76, amqp.list_of([b"\x42"])),
    ]


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def like(kind: str, text: str | None, theirs: Any) -> bool:
    """Whether our text of a type says what a Python client says."""
    if kind == "null" or theirs is None:
        return text is None and theirs is None
    assert text is not None
    if kind in INTS:
        return int(text) == int(theirs)
    if kind == "boolean":
        return (text == "true") is bool(theirs)
    if kind in ("float", "double"):
        return struct.pack(">f", float(text)) == struct.pack(">f", float(theirs))
    if kind == "binary":
        return base64.b64decode(text) == (theirs.encode() if isinstance(theirs, str) else bytes(theirs))
    if kind == "timestamp":
        stamp = theirs.timestamp() * 1000 if isinstance(theirs, datetime) else theirs
        return round(datetime.fromisoformat(text).timestamp() * 1000) == round(stamp)
    if kind in ("list", "array", "map", "described"):
        return like_json(json.loads(text), theirs)
    if kind.startswith("decimal"):
        return not isinstance(theirs, bytes) or text == "0x" + theirs.hex()
    if kind == "char":
        return text in (theirs, as_text(theirs)) or text == (chr(theirs) if isinstance(theirs, int) else None)
    return text == as_text(theirs)


def like_json(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict) and len(ours) == 1 and next(iter(ours)).startswith("$"):
        (name, inner), *_ = ours.items()
        if name == "$described":
            return like_json(inner[1], theirs)
        if name == "$map":
            return like_json(inner, [list(pair) for pair in theirs.items()])
        return like_json(inner, theirs) if name == "$array" else like(name[1:], inner, theirs)
    if isinstance(ours, dict):
        found = {as_text(key): value for key, value in theirs.items()}
        return ours.keys() == found.keys() and all(like_json(ours[key], found[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(like_json, ours, theirs))
    return ours == (as_text(theirs) if isinstance(ours, str) else theirs)


def compare_rstream(check: Comparison, ours: list[Any], raw: list[bytes]) -> None:
    from rstream import amqp_decoder

    for number, (value, data) in enumerate(zip(ours, raw, strict=True)):
        what = f"rstream message {number}"
        try:
            theirs = amqp_decoder(data)
        except TypeError:  # it has no decoder for characters and decimals; Java's client reads them
            check.unread["rstream"].add(data)
            continue
        body = value["body"]
        if body["data"] is not None:  # of several sections it keeps the last one
            last = theirs.body or b""
            check.check(f"{what} data", body["data"][len(body["data"]) - len(last) :], bytes(last))
        elif body["sequence"] is not None:
            items = [item for section in theirs.sequence for item in section]
            same = [like(one["type"], one["text"], item) for one, item in zip(body["sequence"], items, strict=True)]
            check.check(f"{what} sequence", same, [True] * len(items))
        elif body["value"] is not None:
            shown = body["value"]
            check.check(f"{what} {shown}", like(shown["type"], shown["text"], theirs.value), True)
        for name, found in (theirs.application_properties or {}).items():
            one = value["application_properties"][as_text(name)]
            check.check(f"{what} property {name} {one} {found!r}", like(one["type"], one["text"], found), True)
        for name, found in (theirs.message_annotations or {}).items():
            one = value["annotations"][as_text(name)]
            check.check(f"{what} annotation {name}", like(one["type"], one["text"], found), True)
        compare_properties(check, what, value, theirs.properties)
        compare_rest(check, what, value, theirs)


def compare_properties(check: Comparison, what: str, value: Any, theirs: Any) -> None:
    for name in theirs._fields if theirs is not None else ():
        found, own = getattr(theirs, name), value[name]
        if isinstance(own, dict):
            check.check(f"{what} {name}", like(own["type"], own["text"], found), True)
        elif isinstance(own, datetime):
            check.check(f"{what} {name}", like("timestamp", own.isoformat(), found), True)
        elif found is not None:
            check.check(f"{what} {name}", own, as_text(found) if isinstance(own, str) else found)
        else:
            check.check(f"{what} {name}", own, None)


def compare_rest(check: Comparison, what: str, value: Any, theirs: Any) -> None:
    """The sections that applications rarely see."""
    header = theirs.header
    if header is not None:
        found = {"durable": header.durable, "priority": header.priority, "ttl": header.ttl}
        check.check(f"{what} header", {name: (value["header"] or {})[name] for name in found}, found)
    for group in ("delivery_annotations", "footer"):
        for name, found in (getattr(theirs, group) or {}).items():
            one = value[group][as_text(name)]
            check.check(f"{what} {group} {name}", like(one["type"], one["text"], found), True)


def publish_rstream(port: int, stream: str) -> None:
    async def work() -> None:
        from rstream import Producer, RawMessage

        address = {"host": HOST, "port": port, "username": "guest", "password": "guest"}
        async with Producer(**address) as producer:
            await producer.create_stream(stream)
            for message in [*rstream_messages(), *map(RawMessage, raw_messages())]:
                await producer.send_wait(stream, message)

    asyncio.run(work())


# --- Java


def java(command: list[str], *arguments: str) -> list[str]:
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"the Java client failed: {done.stderr[-2000:]}")
    return done.stdout.splitlines()


def compare_java(check: Comparison, ours: list[Any], raw: list[bytes], lines: list[str]) -> None:
    names: dict[int, set[str]] = {}
    for line in lines:
        offset, name, kind, encoded = line.split("\t")
        value, theirs = ours[int(offset)], canonical(json.loads(base64.b64decode(encoded)))
        names.setdefault(int(offset), set()).add(name)
        group, _, key = name.partition(".")
        own = plain(value[group][key] if key else value[name] if name != "body" else java_body(value["body"]))
        if own is None and theirs in (0, -1, []):
            continue  # what the client has for a number that is absent
        if name == "body" and raw[int(offset)].count(b"\0\x53\x75") > 1:  # of several sections it keeps the first
            own, theirs = (base64.b64decode(one[1]) for one in (own, theirs))
            own = own[: len(theirs)]
        if name == "body" and raw[int(offset)].count(b"\0\x53\x76") > 1:
            own = own[: len(theirs)]
        if kind == "String" and own == ["symbol", theirs]:
            own = theirs  # in annotations and properties it makes no difference between the two
        check.check(f"Java {offset} {name} ({kind})", own, theirs)
    for offset, value in enumerate(ours):
        if offset not in names and plain(java_body(value["body"])) is not None:
            check.unread["Java"].add(raw[offset])
            continue
        for group in ("application_properties", "annotations"):
            own_names = {f"{group}.{key}" for key, one in (value[group] or {}).items() if one["type"] != "null"}
            check.check(f"Java {offset} names", own_names - names.get(offset, set()), set())
        body = plain(java_body(value["body"]))
        check.check(f"Java {offset} has a body", "body" in names.get(offset, set()), body is not None)


def java_body(body: Any) -> Any:
    return next((one for one in (body["data"], body["sequence"], body["value"]) if one is not None), None)


def plain(own: Any) -> Any:
    """What Duramen has, as `canonical` makes it of what Java prints."""
    if isinstance(own, list):
        return [["array", plain(one)] if one["type"] == "array" else plain(one) for one in own]
    if isinstance(own, bytes):
        return ["binary", base64.b64encode(own).decode()]
    if isinstance(own, datetime):
        return round(own.timestamp() * 1000)
    if not isinstance(own, dict):
        return own
    kind, text = own["type"], own["text"]
    if kind in INTS or kind in ("float", "double"):
        return float(text) if kind in ("float", "double") else int(text)
    if kind in ("null", "string", "boolean"):
        return text == "true" if kind == "boolean" else text
    return canonical(json.loads(text) if kind in ("list", "map", "array", "described") else {f"${kind}": text})


def canonical(tree: Any) -> Any:
    """JSON of either side in one form: maps by their pairs, times in milliseconds, other types by name and text."""
    if isinstance(tree, list):
        return [canonical(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    (name, inner), *more = tree.items() or [("", None)]
    if more or not name.startswith("$") or name == "$map":
        pairs = inner if name == "$map" and not more else map(list, tree.items())
        return ["map", sorted([canonical(pair) for pair in pairs if pair[0] != ""], key=repr)]
    if name == "$timestamp":
        return int(inner) if inner.lstrip("-").isdigit() else round(datetime.fromisoformat(inner).timestamp() * 1000)
    return [name[1:], canonical(inner)]


# --- pika


HEADERS: dict[str, Any] = {
    "string": "text", "long": 7, "big": 2**40, "negative": -3, "bool": True, "bytes": b"\xff", "none": None,
    "time": datetime(2024, 1, 31, 12, tzinfo=UTC), "list": [1, "two"], "table": {"k": "v"},
    "x-string": "x", "x-long": 2**33, "x-list": [1, "two", [False]], "x-table": {"k": 1, "l": [b"b"]},
}  # fmt: skip
"""Every type that pika encodes, but decimals: the broker ends the connection. It drops lists and tables, but not those
whose name begins with ``x-``, since RabbitMQ 3.13."""


PIKA_PROPERTIES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id",
)  # fmt: skip


def pika_round(port: int, queue: str) -> list[tuple[Any, bytes]]:
    """Publish over AMQP 0.9.1 and consume it again."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    full = pika.BasicProperties(
        content_type="text/plain", content_encoding="gzip", headers=HEADERS, delivery_mode=2, priority=3,
        correlation_id="corr", reply_to="reply", expiration="60000", message_id="id", timestamp=1_700_000_000,
        type="kind", user_id="guest", app_id="app",
    )  # fmt: skip
    bare = [pika.BasicProperties(**{name: getattr(full, name)}) for name in PIKA_PROPERTIES]
    sent = [(b"plain", None), (b"with everything \xff", full), (b"", pika.BasicProperties()), (b"x" * 70_000, full)]
    sent += [(b"with one property", properties) for properties in bare]
    for body, properties in sent:
        channel.basic_publish("", queue, body, properties)
    channel.basic_qos(prefetch_count=10)
    got = []
    for method, properties, body in channel.consume(queue, arguments={"x-stream-offset": "first"}):
        got.append((properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(got) == len(sent):
            break
    channel.cancel()
    connection.close()
    return got


def compare_pika(check: Comparison, ours: list[Any], theirs: list[tuple[Any, bytes]]) -> None:
    for number, (value, (properties, body)) in enumerate(zip(ours, theirs, strict=True)):
        what = f"pika message {number}"
        check.check(f"{what} body", value["body"]["data"], body)
        found = {**(value["annotations"] or {}), **(value["application_properties"] or {})}
        classic = classic_properties(value, found)
        for name in PIKA_PROPERTIES:
            if name != "headers":
                check.check(f"{what} {name}", classic[name], getattr(properties, name))
        headers = {name: one for name, one in (properties.headers or {}).items() if name != "x-stream-offset"}
        for name, header in headers.items():
            one = found.get(name, {"type": "missing", "text": ""})
            # A binary within a list or table comes back as text: AMQP 0.9.1 has one type for both.
            check.check(f"{what} header {name} {one} {header!r}", like(one["type"], one["text"], header), True)
        own = {name for name in found if not name.startswith(("x-basic-", "x-exchange", "x-routing-key"))}
        check.check(f"{what} headers", own, set(headers))


def classic_properties(value: Any, found: dict[str, Any]) -> dict[str, Any]:
    """The properties of AMQP 0.9.1, from where the broker has put them: until RabbitMQ 3.12 into annotations and
    application properties of its own, then into the header and the group. RabbitMQ 4.3 makes ``reply_to`` an address
    of a queue."""
    text = {name: one["text"] for name, one in found.items()}
    header, stamp, user = value["header"] or {}, value["creation_time"], value["user_id"]
    durable, ttl, priority = header.get("durable"), header.get("ttl"), header.get("priority")
    mode, old = None if durable is None else 1 + durable, text.get("x-basic-delivery-mode")
    return {
        **{name: value[name] for name in ("content_type", "content_encoding")},
        "reply_to": value["reply_to"] and value["reply_to"].removeprefix("/queues/"),
        **{name: value[name] and value[name]["text"] for name in ("message_id", "correlation_id")},
        "timestamp": stamp and int(stamp.timestamp()), "user_id": user and user.decode(),
        "type": text.get("x-basic-type"), "app_id": text.get("x-basic-app-id", value["group_id"]),
        "priority": int(text["x-basic-priority"]) if "x-basic-priority" in text else priority,
        "expiration": text.get("x-basic-expiration", None if ttl is None else str(ttl)),
        "delivery_mode": int(old) if old else mode,
    }  # fmt: skip


# --- the run


def decoded(broker: Broker, stream: str) -> tuple[list[Any], list[bytes]]:
    with duramen.open(broker.stream_directory(stream)) as log:
        raw = [record.value or b"" for record in log.scan()]
        return [record.value for record in log.scan(decode="amqp")], raw


def steps(root: Path, broker: Broker, check: Comparison) -> Iterator[str]:
    publish_rstream(broker.stream_port, "by-rstream")
    ours, raw = decoded(broker, "by-rstream")
    compare_rstream(check, ours, raw)
    yield f"rstream: {len(raw)} messages"
    client = JavaClient.install(root / "java", broker.stream_port)
    if client is not None:
        source = Path(__file__).with_name("ValuesClient.java")
        classpath = f"{root / 'java'}/lib/*:{root / 'java'}"
        subprocess.run(["javac", "-cp", classpath, "-d", str(root / "java"), str(source)], check=True)
        command = ["java", "-cp", classpath, "ValuesClient"]
        Client(broker.stream_port).declare("by-java")
        for what in ("publish", "bodies"):
            java(command, what, str(broker.stream_port), "by-java")
        ours, raw = decoded(broker, "by-java")
        compare_java(check, ours, raw, java(command, "consume", str(broker.stream_port), "by-java", str(len(raw))))
        compare_rstream(check, ours, raw)
        theirs, raw = decoded(broker, "by-rstream")
        compare_java(check, theirs, raw, java(command, "consume", str(broker.stream_port), "by-rstream", str(len(raw))))
        yield f"Java: {len(ours)} messages of its own, {len(theirs)} of rstream"
    returned = pika_round(broker.amqp_port, "by-pika")
    ours, raw = decoded(broker, "by-pika")
    compare_pika(check, ours, returned)
    compare_rstream(check, ours, raw)
    yield f"pika: {len(raw)} messages"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", type=Path, metavar="DIR", help="take the RabbitMQ of another release, in DIR")
    system, check = parser.parse_args().system, Comparison()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duramen-values-"))).resolve()
        broker_module.install_package(system)
        client_module.PACKAGES = (*client_module.PACKAGES, "pika")
        versions = broker_module.package_versions(system) | client_module.install(root / "site-packages")
        print(", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)
        broker = stack.enter_context(Broker(root / "broker", system))
        broker.start()
        for said in steps(root, broker, check):
            print(said, flush=True)
    print(f"--- {check.count} things compared, {len(check.failed)} failed")
    for client, unread in check.unread.items():
        print(f"not decoded by {client}: {len(unread)}")
    for data in set.intersection(*check.unread.values()):
        print(f"decoded by neither: {data!r}")
    for failed in check.failed:
        print(f"FAILED {failed}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
