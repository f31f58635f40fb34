"""The options of the data source: read from text, checked, and kept as one value that travels to the executors.

Spark hands every option over as text under a lower-cased name. A name that is not known or a value that makes no sense
raises `UsageError` with the option and what it may be; nothing is ignored. Opens no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from duramen.errors import UsageError
from duramen.formats import FORMATS, ISOLATIONS
from duramen.record import to_us
from duramen.spark.source.declared import CLIENT, OPTIONS, REFUSED
from duramen.values import KINDS, ON_MALFORMED, Decoding

EARLIEST, LATEST = "earliest", "latest"
ON_DAMAGE = ("fail", "skip", "report")
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value")
MIN_PARTITION_BYTES = 8 << 20
MAX_PARTITION_BYTES = 64 << 20
NATIVE_PARTITION_BYTES = 256 << 20
"""The same where the JVM reads: a task costs it as much as some 50 MiB."""

Bound = str | int
"""``earliest``, ``latest``, an offset, or, if negative, so many records before the end."""
Bounds = Bound | Mapping[str, Mapping[int, Bound]]
_IN_JSON = {"-2": EARLIEST, "-1": LATEST}
"""What Kafka's source calls the ends of a partition, in offsets given as JSON."""

Times = Mapping[str, Mapping[int, int]]
"""Microseconds, by topic and partition."""

NAMES = tuple(option.name for option in OPTIONS)
SINCE_US, UNTIL_US = "_sinceus", "_untilus"
"""Bounds of the time in microseconds, as `duramen.spark.read` takes them from a condition: a log whose records have no
time has no such rows."""
SCHEMAS = ("duramen", "kafka")
ENGINES = ("auto", "jvm", "arrow", "python")
STRATEGIES = ("error", LATEST)
DEFAULT_DELAY_MS = 15 * 60_000
_UNITS_MS = {"us": 0.001, "ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class ReadOptions:
    """What a read was asked for."""

    path: str
    """The first one, if there are several."""
    paths: tuple[str, ...] = ()
    """All of them, if they were given as ``paths``."""
    log_format: str | None = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    assign: Mapping[str, frozenset[int]] | None = None
    partitions: frozenset[int] | None = None
    starting: Bounds = EARLIEST
    ending: Bounds = LATEST
    starting_us: int | None = None
    ending_us: int | None = None
    starting_times: Times | None = None
    ending_times: Times | None = None
    starting_strategy: str | None = None
    """What a time later than every record means: ``error`` or ``latest``; None where the user did not say."""
    allows_no_times: bool = False
    """Whether a log whose records have no time has no rows in a range of time; otherwise it is an error."""
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_DELAY_MS
    min_partitions: int = 1
    max_bytes_per_partition: int | None = None
    max_records_per_partition: int | None = None
    is_kafka_schema: bool = False
    include_headers: bool | None = None
    columns: tuple[str, ...] | None = None
    fail_on_data_loss: bool = True
    on_damage: str = "fail"
    verify: bool | None = None
    cursor: str | None = None
    decoding: Decoding | None = None
    """What becomes of values and keys. Its types may be known only after a look at the log (`sampling`)."""
    summary: bool = False
    """Whether a row describes the records of a log in one task, instead of one record."""

    @property
    def is_store(self) -> bool:
        return any(one is not None for one in (self.subscribe, self.subscribe_pattern, self.assign))


def parse_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    texts = {name.lower(): text for name, text in given.items()}
    known = {name.lower(): name for name in NAMES}
    of_format = {name.lower(): name for kind in FORMATS.values() for name in kind.option_names}
    _refuse_unknown(texts, {**known, **of_format, SINCE_US: SINCE_US, UNTIL_US: UNTIL_US})
    _refuse_wrong(texts, streaming=streaming)
    _check_engine(texts)
    get, pattern = _Texts(texts), texts.get("subscribepattern")
    get.choice("isolation", ISOLATIONS)
    paths = get.paths()
    parsed = ReadOptions(
        path=paths[0] if paths else texts["path"],
        paths=paths,
        log_format=texts.get("logformat"),
        format_options={of_format[name]: texts[name] for name in of_format.keys() & texts.keys()},
        subscribe=get.names("subscribe"),
        subscribe_pattern=None if pattern is None else _regex("subscribePattern", pattern),
        assign=get.assignment("assign"),
        partitions=get.ranges("partitions"),
        starting=get.bounds("startingOffsets", EARLIEST),
        ending=get.bounds("endingOffsets", LATEST),
        **_ranges_of_time(get),
        max_offsets_per_trigger=get.count("maxOffsetsPerTrigger"),
        max_bytes_per_trigger=get.size("maxBytesPerTrigger"),
        min_offsets_per_trigger=get.count("minOffsetsPerTrigger"),
        max_trigger_delay_ms=get.duration_ms("maxTriggerDelay", DEFAULT_DELAY_MS),
        min_partitions=get.count("minPartitions") or 1,
        max_bytes_per_partition=get.size("maxBytesPerPartition"),
        max_records_per_partition=get.count("maxRecordsPerPartition"),
        is_kafka_schema=get.choice("schema", SCHEMAS) == "kafka",
        include_headers=get.flag("includeHeaders", None),
        columns=get.names("columns"),
        fail_on_data_loss=get.flag("failOnDataLoss", True),
        on_damage=get.choice("onDamage", ON_DAMAGE) or "fail",
        verify=get.flag("verify", None),
        cursor=texts.get("cursor"),
        decoding=get.decoding(),
        summary=get.flag("summary", False),
    )
    return _checked(parsed)


def _ranges_of_time(get: _Texts) -> dict[str, Any]:
    return {
        "starting_us": _later(get.time("startingTimestamp"), get.number(SINCE_US)),
        "ending_us": _earlier(get.time("endingTimestamp"), get.number(UNTIL_US)),
        "starting_times": get.times("startingOffsetsByTimestamp"),
        "ending_times": get.times("endingOffsetsByTimestamp"),
        "starting_strategy": get.choice("startingOffsetsByTimestampStrategy", STRATEGIES),
        "allows_no_times": SINCE_US in get.texts or UNTIL_US in get.texts,
    }


def option_text(value: Any) -> str:
    """An option as Spark hands it over: a list becomes names with commas.

    >>> option_text(["offset", "key"]), option_text(True), option_text(7)
    ('offset,key', 'true', '7')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value)


def _refuse_unknown(texts: Mapping[str, str], known: Mapping[str, str]) -> None:
    unknown = sorted(texts.keys() - known.keys())
    if not unknown:
        return
    refused = {name.lower(): (name, why.replace("`", "")) for name, why in REFUSED.items()}
    for name in unknown:
        if name in refused or name.startswith(CLIENT):
            known_as, why = refused.get(name, (name, "a log is files: no client of Kafka reads it; leave it out"))
            raise UsageError(f"option {known_as} is Kafka's and has no meaning here", hint=why)
    import difflib

    near = [known[name] for name in difflib.get_close_matches(unknown[0], known, 3, 0.7)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"the options: {', '.join(NAMES)}, and the format's own"
    raise UsageError(f"option {unknown[0]} is not known", hint=hint)


_ONE_OF = (
    ("path", "paths"),
    ("subscribe", "subscribePattern", "assign"),
    ("assign", "partitions"),
    ("schema", "columns"),
    ("startingOffsets", "startingOffsetsByTimestamp"),
    ("startingTimestamp", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingOffsetsByTimestamp"),
    ("endingTimestamp", "endingOffsetsByTimestamp"),
)
"""Options of which a read takes one at most."""
_NEEDS = {
    "valueSchema": ("decode",),
    "keySchema": ("decodeKey",),
    "registry": ("decode", "decodeKey"),
    "onMalformed": ("decode", "decodeKey"),
    "partitions": ("subscribe", "subscribePattern"),
    "maxTriggerDelay": ("minOffsetsPerTrigger",),
    "startingOffsetsByTimestampStrategy": ("startingOffsetsByTimestamp", "startingTimestamp"),
}
"""Options that mean something only beside one of others."""
_DECODING = {
    "decode": "decode", "decode_key": "decodeKey", "value_schema": "valueSchema", "key_schema": "keySchema",
    "registry": "registry", "on_malformed": "onMalformed",
}  # fmt: skip
"""The arguments of a decoding, and the options that they are here."""
_NOT_OF_STREAMS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def _refuse_wrong(texts: Mapping[str, str], *, streaming: bool) -> None:
    if not texts:
        raise UsageError(
            "option path is missing, and so are all others: Spark forgets the options of a table for a Python source",
            hint="use SELECT … FROM table WITH (path='…'), or CREATE TEMPORARY VIEW … USING duramen OPTIONS (path '…')",
        )
    if "path" not in texts and "paths" not in texts:
        raise UsageError("option path is missing", hint='name the log: .load("/data/events")')
    log_format = texts.get("logformat")
    if log_format is not None and log_format not in FORMATS:
        raise _wrong("logFormat", log_format, ", ".join(FORMATS))
    if texts.get("summary", "false").strip().lower() == "true":
        _refuse_with_summary(texts, streaming=streaming)
    for names in _ONE_OF:
        given = [name for name in names if name.lower() in texts]
        if len(given) > 1:
            raise UsageError(f"options {' and '.join(given)} are both given", hint="give one of them")
    for name, others in _NEEDS.items():
        if name.lower() in texts and not any(other.lower() in texts for other in others):
            raise UsageError(f"option {name} is given alone", hint=f"it needs {' or '.join(others)}")
    for name in _NOT_OF_STREAMS:
        if streaming and name.lower() in texts:
            raise UsageError(f"option {name} makes no sense for a stream", hint="use it with spark.read")


def _check_engine(texts: Mapping[str, str]) -> None:
    """The JVM's engine takes this option for itself: one that arrives here is Python's to fulfil."""
    engine = _Texts(texts).choice("engine", ENGINES)
    if engine in ("jvm", "arrow"):
        raise UsageError(
            f"option engine={engine!r}: Python reads, because the JVM's engine is not on the class path",
            hint="spark.jars must name what duramen.spark.jar() returns; engine=auto reads with what there is",
        )


def _refuse_with_summary(texts: Mapping[str, str], *, streaming: bool) -> None:
    if streaming:
        raise UsageError("option summary=true makes no sense for a stream", hint="use it with spark.read")
    if "decode" in texts or "decodekey" in texts:
        raise UsageError("options summary and decode are both given", hint="a summary holds no values: drop one")
    if "columns" in texts:
        raise UsageError(
            "options summary and columns are both given", hint="a summary has columns of its own: drop one"
        )
    if texts.get("ondamage", "").strip().lower() == "report":
        raise _wrong("onDamage", "report", "fail or skip with summary=true: a summary has no row for damage")


def _checked(options: ReadOptions) -> ReadOptions:
    """The options, if their values go together."""
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise UsageError(
            f"option minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}", hint="lower the first"
        )
    for column in options.decoding.decoders if options.decoding is not None else ():
        if options.columns is not None and column not in options.columns:
            option = "decode" if column == "value" else "decodeKey"
            raise UsageError(f"option {option} is given, and {column!r} is not among the columns", hint="add it")
    if options.columns is not None and options.include_headers not in (None, "headers" in options.columns):
        raise UsageError(
            f"option includeHeaders={str(options.include_headers).lower()} contradicts the option columns",
            hint="drop includeHeaders: columns says it all",
        )
    return options


def _later(one: int | None, other: int | None) -> int | None:
    return max((bound for bound in (one, other) if bound is not None), default=None)


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


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

    def number(self, name: str) -> int | None:
        text = self._get(name)
        return None if text is None else int(text)

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        text = self._get(name)
        if text is None:
            return None
        if text.lower() not in choices:
            raise _wrong(name, text, ", ".join(choices))
        return text.lower()

    def decoding(self) -> Decoding | None:
        given = {name: self._get(option) for name, option in _DECODING.items()}
        for option, choices in (("decode", KINDS), ("decodeKey", KINDS), ("onMalformed", ON_MALFORMED)):
            self.choice(option, choices)
        try:
            return Decoding.of({name: text for name, text in given.items() if text is not None})
        except UsageError as error:
            for name, option in _DECODING.items():
                error.message = re.sub(rf"\b{name}\b", option, error.message)
            raise

    def duration_ms(self, name: str, default: int) -> int:
        """A number of milliseconds, or one with a unit, as Spark writes times."""
        text = self._get(name)
        if text is None:
            return default
        found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.lower())
        if found is None or found[2] not in _UNITS_MS:
            raise _wrong(name, text, "milliseconds, or a number with us, ms, s, m, min, h or d, such as 15m")
        return int(int(found[1]) * _UNITS_MS[found[2]])

    def paths(self) -> tuple[str, ...]:
        text = self._get("paths")
        if text is None:
            return ()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            raise _wrong("paths", text, 'a JSON array such as ["/data/a", "/data/b"]')
        return tuple(dict.fromkeys(found))

    def assignment(self, name: str) -> Mapping[str, frozenset[int]] | None:
        text = self._get(name)
        if text is None:
            return None
        try:
            found = {str(topic): [*numbers] for topic, numbers in json.loads(text).items()}
        except (ValueError, AttributeError, TypeError, RecursionError):
            found = {}
        if not found or not all(type(number) is int and number >= 0 for one in found.values() for number in one):
            raise _wrong(name, text, 'JSON such as {"orders": [0, 2]}')
        return {topic: frozenset(numbers) for topic, numbers in found.items()}

    def times(self, name: str) -> Times | None:
        """Times by topic and partition; a number is milliseconds."""
        text = self._get(name)
        if text is None:
            return None
        try:
            return {
                str(topic): {int(number): to_us(str(when)) for number, when in partitions.items()}
                for topic, partitions in json.loads(text).items()
            }
        except (ValueError, AttributeError, TypeError, RecursionError):
            allowed = 'JSON such as {"orders": {"0": 1700000000000, "1": "2026-01-31T12:00:00Z"}}'
            raise _wrong(name, text, allowed) from None

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
