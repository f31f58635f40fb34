"""The options of the data source: read from text, checked, and kept as one value that travels to the executors.

Spark hands every option over as text under a lower-cased name. A name that is not known or a value that makes no sense
raises `UsageError` with the option and what it may be; nothing is ignored. Opens no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duramen.errors import UsageError
from duramen.formats import FORMATS
from duramen.record import to_us

EARLIEST, LATEST = "earliest", "latest"
ON_DAMAGE = ("fail", "skip", "report")
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value")
MIN_PARTITION_BYTES = 8 << 20
MAX_PARTITION_BYTES = 64 << 20

Bound = str | int
"""``earliest``, ``latest``, an offset, or, if negative, so many records before the end."""
Bounds = Bound | Mapping[str, Mapping[int, Bound]]
_IN_JSON = {"-2": EARLIEST, "-1": LATEST}
"""What Kafka's source calls the ends of a partition, in offsets given as JSON."""

NAMES = (
    "path", "logFormat", "subscribe", "subscribePattern", "partitions", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions",
    "maxBytesPerPartition", "columns", "failOnDataLoss", "onDamage", "verify", "cursor",
)  # fmt: skip

_OF_A_TABLE = {"provider", "owner", "external", "is_managed_location", "comment", "collation"}


@dataclass(frozen=True)
class ReadOptions:
    """What a read was asked for."""

    path: str
    log_format: str | None = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    partitions: frozenset[int] | None = None
    starting: Bounds = EARLIEST
    ending: Bounds = LATEST
    starting_us: int | None = None
    ending_us: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int = 1
    max_bytes_per_partition: int | None = None
    columns: tuple[str, ...] | None = None
    fail_on_data_loss: bool = True
    on_damage: str = "fail"
    verify: bool | None = None
    cursor: str | None = None

    @property
    def is_store(self) -> bool:
        return self.subscribe is not None or self.subscribe_pattern is not None


def parse_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    texts = _without_table({name.lower(): text for name, text in given.items()})
    known = {name.lower(): name for name in NAMES}
    of_format = {name.lower(): name for kind in FORMATS.values() for name in kind.option_names}
    _refuse_unknown(texts, {**known, **of_format})
    _refuse_wrong(texts, streaming=streaming)
    get, pattern = _Texts(texts), texts.get("subscribepattern")
    return ReadOptions(
        path=texts["path"],
        log_format=texts.get("logformat"),
        format_options={of_format[name]: texts[name] for name in of_format.keys() & texts.keys()},
        subscribe=get.names("subscribe"),
        subscribe_pattern=None if pattern is None else _regex("subscribePattern", pattern),
        partitions=get.ranges("partitions"),
        starting=get.bounds("startingOffsets", EARLIEST),
        ending=get.bounds("endingOffsets", LATEST),
        starting_us=get.time("startingTimestamp"),
        ending_us=get.time("endingTimestamp"),
        max_offsets_per_trigger=get.count("maxOffsetsPerTrigger"),
        max_bytes_per_trigger=get.size("maxBytesPerTrigger"),
        min_partitions=get.count("minPartitions") or 1,
        max_bytes_per_partition=get.size("maxBytesPerPartition"),
        columns=get.names("columns"),
        fail_on_data_loss=get.flag("failOnDataLoss", True),
        on_damage=texts.get("ondamage", "fail").lower(),
        verify=get.flag("verify", None),
        cursor=texts.get("cursor"),
    )


def _without_table(texts: dict[str, str]) -> dict[str, str]:
    """The options alone, where Spark hands over all it knows about a table of its catalogue."""
    location = texts.pop("location", None)
    for name in _OF_A_TABLE & texts.keys():
        del texts[name]
    for name in [name for name in texts if name.startswith("option.")]:
        texts.setdefault(name.removeprefix("option."), texts.pop(name))
    if location is not None:
        texts.setdefault("path", location)
    return texts


def _refuse_unknown(texts: Mapping[str, str], known: Mapping[str, str]) -> None:
    unknown = sorted(texts.keys() - known.keys())
    if not unknown:
        return
    if unknown == ["paths"]:
        raise UsageError("one path can be read at a time", hint="read each log and unite them, or use subscribe")
    import difflib

    near = [known[name] for name in difflib.get_close_matches(unknown[0], known, 3, 0.7)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"the options: {', '.join(NAMES)}, and the format's own"
    raise UsageError(f"option {unknown[0]} is not known", hint=hint)


def _refuse_wrong(texts: Mapping[str, str], *, streaming: bool) -> None:
    if not texts:
        raise UsageError(
            "option path is missing, and so are all others: Spark forgets the options of a table for a Python source",
            hint="use CREATE TEMPORARY VIEW … USING duramen OPTIONS (path '…')",
        )
    if "path" not in texts:
        raise UsageError("option path is missing", hint='name the log: .load("/data/events")')
    log_format, on_damage = texts.get("logformat"), texts.get("ondamage", "fail").lower()
    if log_format is not None and log_format not in FORMATS:
        raise _wrong("logFormat", log_format, ", ".join(FORMATS))
    if "subscribepattern" in texts and "subscribe" in texts:
        raise UsageError("options subscribe and subscribePattern are both given", hint="give one of them")
    if on_damage not in ON_DAMAGE:
        raise _wrong("onDamage", on_damage, ", ".join(ON_DAMAGE))
    for name in ("endingOffsets", "endingTimestamp"):
        if streaming and name.lower() in texts:
            raise UsageError(f"option {name} makes no sense for a stream", hint="use it with spark.read")


@dataclass(frozen=True)
class _Texts:
    """The texts of the options, read as what they should be."""

    texts: Mapping[str, str]

    def _get(self, name: str) -> str | None:
        text = self.texts.get(name.lower())
        return None if text is None else text.strip()

    def count(self, name: str) -> int | None:
        text = self._get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise _wrong(name, text, "a number from 1")
        return int(text)

    def size(self, name: str) -> int | None:
        """Bytes: a number, optionally followed by k, m, g or t, as Spark writes sizes."""
        text = self._get(name)
        if text is None:
            return None
        found = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", text.lower())
        if found is None or int(found[1]) < 1:
            raise _wrong(name, text, "a number of bytes from 1, such as 67108864 or 64m")
        return int(found[1]) << (10 * " kmgt".index(found[2] or " "))

    def flag(self, name: str, default: Any) -> Any:
        text = self._get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise _wrong(name, text, "true, false")
        return text.lower() == "true"

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self._get(name)
        if text is None:
            return None
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        if not found:
            raise _wrong(name, text, "names with commas between them")
        if len(set(found)) < len(found):
            raise _wrong(name, text, "each name once")
        return found

    def ranges(self, name: str) -> frozenset[int] | None:
        text = self._get(name)
        if text is None:
            return None
        numbers: set[int] = set()
        for part in text.split(","):
            found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
            if found is None or (found[2] is not None and not int(found[1]) <= int(found[2]) < 1 << 20):
                raise _wrong(name, text, "partition numbers and ranges, such as 0,2,4-7")
            numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
        return frozenset(numbers)

    def time(self, name: str) -> int | None:
        text = self._get(name)
        if text is None:
            return None
        try:
            return to_us(text)
        except ValueError:
            raise _wrong(name, text, "ISO 8601 such as 2026-01-31T12:00:00Z, or epoch milliseconds") from None

    def bounds(self, name: str, default: str) -> Bounds:
        text = self._get(name)
        if text is None:
            return default
        if not text.startswith("{"):
            return _bound(name, text)
        try:
            tree = json.loads(text)
            return {
                str(topic): {int(partition): _bound_in_json(name, bound) for partition, bound in partitions.items()}
                for topic, partitions in tree.items()
            }
        except (ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            raise _wrong(name, text, 'JSON such as {"orders": {"0": 23, "1": "earliest"}}') from None


def _bound(name: str, text: str) -> Bound:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    if not re.fullmatch(r"-?\d{1,19}", text) or int(text) >= 2**63:
        raise _wrong(name, text, f"{EARLIEST}, {LATEST}, an offset, -N for the last N, or JSON per topic and partition")
    return int(text)


def _bound_in_json(name: str, value: Any) -> Bound:
    """The bound of one partition. Negative numbers are Kafka's: a count of records before the end is not one."""
    text = str(value).strip()
    bound = _bound(name, _IN_JSON.get(text, text))
    if isinstance(bound, int) and bound < 0:
        allowed = "an offset, -2 or earliest, -1 or latest; a number of records before the end works outside of JSON"
        raise _wrong(name, text, allowed)
    return bound


def _regex(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise _wrong(name, text, f"a regular expression ({error})") from None
    return text


def _wrong(name: str, text: str, allowed: str) -> UsageError:
    return UsageError(f"option {name}={text!r} is not valid", hint=f"allowed: {allowed}")
