"""A real stream client, `rstream`, behind a few plain calls that wait for their answers.

`rstream` is no dependency of the project: `install` puts it where `path` says, and it is imported from there. Besides
its own gzip it gets decoders for lz4 and zstd that share no code with Duramen's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.interop.broker import HOST

PACKAGES = ("rstream", "lz4", "zstandard")
TIMEOUT_S = 60
IDLE_S = 0.5
"""How long nothing more may come before a consumer that has all it expects believes that this is all."""

T = TypeVar("T")


def install(path: Path) -> dict[str, str]:
    """Install the client into ``path`` and make it importable; answers what was installed."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(path)]
    subprocess.run([*command, *PACKAGES], check=True)
    sys.path.insert(0, str(path))
    from importlib.metadata import version

    _register_codecs()
    return {name: version(name) for name in PACKAGES}


def _register_codecs() -> None:
    import lz4.frame
    import zstandard
    from rstream.compression import CompressionType, NoneCompressionCodec, StreamCompressionCodecs

    class Decoder(NoneCompressionCodec):  # type: ignore[misc]
        def __init__(self, decompress: Any) -> None:
            super().__init__()
            self._decompress = decompress

        def uncompress(self, compressed_data: bytes, uncompressed_data_size: int) -> bytes:
            plain: bytes = self._decompress(compressed_data, uncompressed_data_size)
            if len(plain) != uncompressed_data_size:
                raise ValueError(f"{len(plain)} bytes instead of {uncompressed_data_size}")
            return plain

    def unzstd(data: bytes, size: int) -> bytes:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)

    def unlz4(data: bytes, size: int) -> bytes:
        return lz4.frame.decompress(data)  # type: ignore[no-any-return]

    StreamCompressionCodecs.register_codec(CompressionType.Lz4, Decoder(unlz4))
    StreamCompressionCodecs.register_codec(CompressionType.Zstd, Decoder(unzstd))


class Message(NamedTuple):
    """A message as a consumer got it: ``raw`` as stored, ``body`` as its AMQP decoder understood it."""

    offset: int
    timestamp_ms: int
    raw: bytes
    body: bytes


class Client:
    """Calls to the broker on ``port``, one connection each."""

    def __init__(self, port: int) -> None:
        self._address = {"host": HOST, "port": port, "username": "guest", "password": "guest"}

    def declare(self, stream: str, **arguments: object) -> None:
        async def work() -> None:
            from rstream import Producer

            async with Producer(**self._address) as producer:
                await producer.create_stream(stream, {k.replace("_", "-"): str(v) for k, v in arguments.items()})

        _run(work())

    def delete(self, stream: str) -> None:
        async def work() -> None:
            from rstream import Producer

            async with Producer(**self._address) as producer:
                await producer.delete_stream(stream)

        _run(work())

    def publish(
        self,
        stream: str,
        messages: Sequence[bytes],
        *,
        name: str | None = None,
        ids: Iterable[int] | None = None,
        filter_by: Callable[[bytes], bytes | None] | None = None,
    ) -> int:
        """Publish in one frame, wait for the confirmations, answer how many there were. ``messages`` are AMQP
        already; ``ids`` are the publishing ids of a named publisher; ``filter_by`` gives the filter value of one."""

        async def work() -> int:
            from rstream import Producer, RawMessage

            async def extract(message: Any) -> str:
                value = filter_by(bytes(message)) if filter_by else None
                return (value or b"").decode()  # of None it makes a frame that the broker cannot read

            numbers = list(ids) if ids is not None else list(range(1, len(messages) + 1))
            confirmed: set[int] = set()
            done = asyncio.Event()

            def confirm(status: Any) -> None:
                if status.is_confirmed:
                    confirmed.add(status.message_id)
                if len(confirmed) == len(numbers):
                    done.set()

            batch = [RawMessage(raw, number) for raw, number in zip(messages, numbers, strict=True)]
            extracting = {"filter_value_extractor": extract} if filter_by else {}
            async with Producer(**self._address, **extracting) as producer:
                await producer.send_batch(stream, batch, publisher_name=name, on_publish_confirm=confirm)
                await done.wait()
            return len(confirmed)

        return _run(work())

    def publish_sub_batch(self, stream: str, messages: Sequence[bytes]) -> None:
        """Publish as one sub-batch, compressed with gzip."""

        async def work() -> None:
            from rstream import CompressionType, Producer, RawMessage

            done = asyncio.Event()
            async with Producer(**self._address) as producer:
                await producer.send_sub_entry(
                    stream, [RawMessage(raw) for raw in messages], compression_type=CompressionType.Gzip,
                    on_publish_confirm=lambda _: done.set(),
                )  # fmt: skip
                await done.wait()

        _run(work())

    def consume(
        self,
        stream: str,
        count: int,
        *,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        last: bool = False,
        filters: Sequence[str] = (),
        unfiltered: bool = False,
    ) -> list[Message]:
        """Everything from the first record, an offset, a time or the last chunk on. Returns when ``count`` messages
        have come and no more do; with fewer after a while. ``filters``: only chunks that may hold these values, and,
        if ``unfiltered``, those without a filter."""

        async def work() -> list[Message]:
            from rstream import Consumer, FilterConfiguration, amqp_decoder

            got: list[Message] = []
            enough = asyncio.Event()

            def take(raw: bytes, context: Any) -> None:
                body = amqp_decoder(raw).body
                got.append(Message(context.offset, context.timestamp, raw, b"".join(_sections(body))))
                if len(got) >= count:
                    enough.set()

            where = {"offset_specification": _specification(offset, timestamp_ms, last)}
            if filters:
                where["filter_input"] = FilterConfiguration(list(filters), match_unfiltered=unfiltered)
            async with Consumer(**self._address) as consumer:
                await consumer.subscribe(stream, take, **where)
                if not await _came(enough, count):
                    return got
                await _stays(got)
            return got

        return _run(work())

    def store_offset(self, stream: str, reader: str, offset: int) -> None:
        """Store a consumer's offset, and wait until the broker answers with it."""

        async def work() -> None:
            from rstream import Consumer

            async with Consumer(**self._address) as consumer:
                await consumer.store_offset(stream, reader, offset)
                while await consumer.query_offset(stream, reader) != offset:
                    await asyncio.sleep(0.05)

        _run(work())

    def stored_offset(self, stream: str, reader: str) -> int | None:
        async def work() -> int | None:
            from rstream import Consumer, OffsetNotFound

            async with Consumer(**self._address) as consumer:
                try:
                    return int(await consumer.query_offset(stream, reader))
                except OffsetNotFound:
                    return None

        return _run(work())

    def publisher_sequence(self, stream: str, name: str) -> int:
        async def work() -> int:
            from rstream import Consumer

            async with Consumer(**self._address) as consumer:
                client = await consumer.default_client
                return int(await client.query_publisher_sequence(stream, name))

        return _run(work())

    def wait_for(self, stream: str, timeout_s: float = TIMEOUT_S) -> None:
        """Return when the stream has a leader: that may take a moment after the broker has started."""

        async def work() -> None:
            from rstream import Consumer, ServerError
            from rstream.exceptions import ClientError

            async with Consumer(**self._address) as consumer:
                client = await consumer.default_client
                while True:
                    try:
                        await client.query_leader_and_replicas(stream)
                        return
                    except (ServerError, ClientError):
                        await asyncio.sleep(0.1)

        _run(work(), timeout_s)


def _specification(offset: int | None, timestamp_ms: int | None, last: bool) -> Any:
    from rstream import ConsumerOffsetSpecification, OffsetType

    if last:
        return ConsumerOffsetSpecification(OffsetType.LAST, None)
    if offset is not None:
        return ConsumerOffsetSpecification(OffsetType.OFFSET, offset)
    if timestamp_ms is not None:
        return ConsumerOffsetSpecification(OffsetType.TIMESTAMP, timestamp_ms)
    return ConsumerOffsetSpecification(OffsetType.FIRST, None)


async def _came(enough: asyncio.Event, count: int) -> bool:
    """Whether ``count`` messages came in time."""
    try:
        await asyncio.wait_for(enough.wait(), TIMEOUT_S / 4 if count else 4 * IDLE_S)
    except TimeoutError:
        return not count
    return True


async def _stays(got: Sequence[Message]) -> None:
    """Return when nothing more comes."""
    seen = -1
    while seen != len(got):
        seen = len(got)
        await asyncio.sleep(IDLE_S)


def _sections(body: Any) -> list[bytes]:
    """The data sections of a decoded message."""
    return [bytes(body)] if isinstance(body, (bytes, bytearray, memoryview)) else [bytes(part) for part in body or ()]


def _run(work: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
    return asyncio.run(asyncio.wait_for(work, timeout_s))
