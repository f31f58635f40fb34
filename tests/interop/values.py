"""`python -m tests.interop.values`: what clients publish to a real RabbitMQ, decoded by Duramen from the files and
compared with what the same clients make of it.

- `rstream` publishes every body and type of AMQP 1.0, encoded by its own encoder and by ours, and consumes them.
- RabbitMQ's Java client publishes a property of every type that it has, and consumes them.
- `pika` publishes over AMQP 0.9.1 into a queue of type stream; the broker converts. It consumes over 0.9.1.

Exit code 1 if anything differs.
"""

from __future__ import annotations

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
        self.unread: list[str] = []

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
    return [
        *(amqp.section(0x77, encoded) for encoded, _ in amqp.SCALARS.values()),
        amqp.section(0x74, amqp.map_of(pairs)) + amqp.data(b"body"),
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
        return base64.b64decode(text) == bytes(theirs)
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
        return like_json(inner, theirs) if name in ("$array", "$map") else like(name[1:], inner, theirs)
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
            check.unread.append(what)
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
        theirs, value = base64.b64decode(encoded).decode(), ours[int(offset)]
        names.setdefault(int(offset), set()).add(name)
        if name == "body" and raw[int(offset)].count(b"\0\x53\x75") > 1:  # of several sections it keeps the first
            first = base64.b64decode(theirs)
            check.check(f"Java {offset} body", value["body"]["data"][: len(first)], first)
            continue
        group, _, key = name.partition(".")
        own = value[group][key] if key else value[name] if name != "body" else java_body(value["body"])
        if own is None and theirs in ("0", "-1", "[]"):
            continue  # what the client has for a number that is absent
        if isinstance(own, dict) and own["type"] in ("list", "map", "array", "described"):
            continue  # Java prints them in its own way; rstream's are compared
        check.check(f"Java {offset} {name} ({kind})", java_text(own, kind, theirs), theirs)
    for offset, found in names.items():
        properties = ours[offset]["application_properties"] or {}
        own_names = {f"application_properties.{name}" for name, one in properties.items() if one["type"] != "null"}
        check.check(f"Java {offset} names", own_names - found, set())


def java_body(body: Any) -> Any:
    if body["sequence"] is not None:
        return {"type": "list", "text": ""}
    return body["data"] if body["data"] is not None else body["value"]


def java_text(own: Any, kind: str, theirs: str) -> Any:
    """What Duramen has, as Java prints it."""
    if isinstance(own, dict):
        text = own["text"]
        if own["type"] == "timestamp":
            return str(round(datetime.fromisoformat(text).timestamp() * 1000))
        if own["type"] in ("float", "double"):
            return theirs if float(theirs) == float(text) else text
        return text
    if isinstance(own, datetime):
        return str(round(own.timestamp() * 1000))
    return base64.b64encode(own).decode() if isinstance(own, bytes) else str(own)


# --- pika


HEADERS: dict[str, Any] = {
    "string": "text", "long": 7, "big": 2**40, "bool": True, "bytes": b"\xff",
    "time": datetime(2024, 1, 31, 12, tzinfo=UTC), "list": [1, "two"], "table": {"k": "v"}, "none": None,
}  # fmt: skip


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
    for body, properties in ((b"plain", None), (b"with everything \xff", full), (b"", pika.BasicProperties())):
        channel.basic_publish("", queue, body, properties)
    channel.basic_qos(prefetch_count=10)
    got = []
    for method, properties, body in channel.consume(queue, arguments={"x-stream-offset": "first"}):
        got.append((properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(got) == 3:
            break
    channel.cancel()
    connection.close()
    return got


def compare_pika(check: Comparison, ours: list[Any], theirs: list[tuple[Any, bytes]]) -> None:
    for number, (value, (properties, body)) in enumerate(zip(ours, theirs, strict=True)):
        what = f"pika message {number}"
        check.check(f"{what} body", value["body"]["data"], body)
        for name in ("content_type", "content_encoding", "reply_to"):
            check.check(f"{what} {name}", value[name], getattr(properties, name))
        for name in ("message_id", "correlation_id"):
            check.check(f"{what} {name}", value[name] and value[name]["text"], getattr(properties, name))
        stamp = value["creation_time"]
        check.check(f"{what} timestamp", stamp and int(stamp.timestamp()), properties.timestamp)
        user = value["user_id"]
        check.check(f"{what} user_id", user and user.decode(), properties.user_id)
        found = {**(value["annotations"] or {}), **(value["application_properties"] or {})}
        for name, header in (properties.headers or {}).items():
            if name == "x-stream-offset":
                continue
            one = found.get(name) or found.get("x-" + name) or {"type": "null", "text": None}
            check.check(f"{what} header {name} {one} {header!r}", like(one["type"], one["text"], header), True)


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
        java(command, "publish", str(broker.stream_port), "by-java")
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
    check = Comparison()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duramen-values-"))).resolve()
        broker_module.install_package()
        client_module.PACKAGES = (*client_module.PACKAGES, "pika")
        versions = broker_module.package_versions() | client_module.install(root / "site-packages")
        print(", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)
        broker = stack.enter_context(Broker(root / "broker"))
        broker.start()
        for said in steps(root, broker, check):
            print(said, flush=True)
    print(f"--- {check.count} things compared, {len(check.failed)} failed")
    print(f"not decoded by rstream: {len(check.unread)}")
    for failed in check.failed:
        print(f"FAILED {failed}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
