"""`duramen cat`: print the records of a log, or a range of them.

Damage ends the output: the records before it are printed, one line on standard error names the position, exit code 1.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from duramen.cli.arguments import (
    Decode,
    DecodeKey,
    FormatName,
    FormatOptions,
    Job,
    KeySchema,
    LogPath,
    OnMalformed,
    Registry,
    Target,
    ValueSchema,
)
from duramen.cli.records import Form, writer
from duramen.cli.store import topic_records
from duramen.errors import CorruptionError, OffsetError, UsageError
from duramen.log import Log
from duramen.record import MAX_OFFSET, to_us
from duramen.store import topic_address
from duramen.values import Decoding

_POSITIONS = "an offset, -N (the last N records), beginning, end or @TIME (ISO 8601 or epoch milliseconds)"

_From = Annotated[str, typer.Option("--from", "-o", metavar="FROM", help=f"First record: {_POSITIONS}.")]
_To = Annotated[str | None, typer.Option("--to", metavar="TO", help="Where to stop, exclusive; same forms as FROM.")]
_Count = Annotated[
    int | None, typer.Option("--count", "-c", metavar="COUNT", min=0, help="Print at most this many records.")
]


def command(
    path: LogPath,
    start: _From = "beginning",
    to: _To = None,
    count: _Count = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")] = False,
    output: Annotated[Form | None, typer.Option("--output", help="Output form (default: text).")] = None,
    base64: Annotated[bool, typer.Option("--base64", help="For jsonl: encode all bytes as base64.")] = False,
    decode: Decode = None,
    decode_key: DecodeKey = None,
    value_schema: ValueSchema = None,
    key_schema: KeySchema = None,
    registry: Registry = None,
    on_malformed: OnMalformed = None,
    format: FormatName = None,
    option: FormatOptions = None,
    json: Annotated[bool, typer.Option("--json", help="Same as --output jsonl.")] = False,
) -> Job:
    """Print the records of a log.

    \b
    text   each value and a line feed; bytes that are not UTF-8 as \\xff
    jsonl  one object per line: offset, timestamp, key, value, headers;
           bytes that are not UTF-8 as base64 under value_base64
    raw    the bytes of the values, without separators
    arrow  an Arrow IPC stream

    With --decode: the fields of each value, as JSON or as columns of arrow.
    """
    form = _form(output, json=json, base64=base64)
    decoders = {"decode": decode, "decode_key": decode_key, "on_malformed": on_malformed, "registry": registry}
    decoding = _decoding(form, path, **decoders, value_schema=value_schema, key_schema=key_schema)
    how: dict[str, Any] = {"count": count, "follow": follow, "base64": base64, "decoding": decoding}
    address, first = topic_address(path), LogPosition.parse(start)
    last = None if to is None else LogPosition.parse(to)
    if address is None:
        return partial(run, Target.of(path, format, option), form, first=first, last=last, **how)
    bounds = partial(_bounds, first=first, last=last)
    return partial(topic_records.cat, address, form, bounds, isolation=_isolation(format, option), **how)


def _form(output: Form | None, *, json: bool, base64: bool) -> Form:
    if json and output not in (None, Form.JSONL):
        raise UsageError(f"--json and --output {output} cannot be used together")
    form = Form.JSONL if json else output or Form.TEXT
    if base64 and form != Form.JSONL:
        raise UsageError(f"--base64 works with --output jsonl only (got --output {form})")
    return form


def _isolation(format: str | None, option: list[str] | None) -> str | None:
    """The only option of a topic: its logs have their format and options."""
    options = Target.of("", None, option).options
    isolation: str | None = options.pop("isolation", None)
    if format is not None or options:
        given = "--format" if format is not None else f"--option {min(options)}"
        raise UsageError(f"{given} has no meaning for a topic", hint="only --option isolation=… has")
    return isolation


def _decoding(form: Form, path: str, **options: str | None) -> Decoding | None:
    decoding = Decoding.of(options, path)
    if decoding is not None and form == Form.RAW:
        raise UsageError("--output raw prints the bytes of values", hint="drop --decode, or choose another output")
    if decoding is not None and form == Form.TEXT and "key" in decoding.decoders:
        raise UsageError("--output text prints no keys", hint="--output jsonl prints decoded keys")
    return decoding


def run(
    target: Target,
    form: Form = Form.TEXT,
    *,
    first: LogPosition,
    last: LogPosition | None = None,
    count: int | None = None,
    follow: bool = False,
    base64: bool = False,
    decoding: Decoding | None = None,
) -> int:
    sys.stdout.flush()
    out = sys.stdout.buffer
    with target.open() as log:
        _say_outside(log, first)
        wanted = {**_bounds(log, first, last), "max_records": count, "columns": form.needed(decoding)}
        batches = log.batches(**wanted, follow=follow)
        if decoding is not None:
            with suppress(CorruptionError, OffsetError):  # the read itself reports damage
                decoding.bind(log.batches(**wanted, verify=False))
        with writer(form, out, log.codec, base64=base64, decoding=decoding) as write:
            for batch in batches:
                write(batch)
                if follow:
                    out.flush()
    return 0


# --- positions


class LogPosition(NamedTuple):
    """A position in a log as given on the command line."""

    kind: str
    value: int = 0
    time: str = ""

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        """
        >>> LogPosition.parse("-5"), LogPosition.parse("17").value, LogPosition.parse("@2023-11-14T22:13:20Z").kind
        (LogPosition(kind='last', value=5, time=''), 17, 'time')
        """
        if text in ("beginning", "earliest"):
            return cls("beginning")
        if text in ("end", "latest"):
            return cls("end")
        if text.startswith("@"):
            return cls("time", time=_checked_time(text[1:]))
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) > MAX_OFFSET:
            raise UsageError(f"not a position in a log: {text!r}", hint=f"give {_POSITIONS}")
        return cls("last" if text.startswith("-") else "offset", int(digits))


def _checked_time(text: str) -> str:
    try:
        us = to_us(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"not a time: @{text}", hint="give ISO 8601 or epoch milliseconds after @") from error
    if not -(2**63) < us < 2**63:
        raise UsageError(f"the time @{text} is out of range", hint="a time must fit in 64-bit microseconds")
    return text


def _say_outside(log: Log, first: LogPosition) -> None:
    """Print a note if the log does not contain the requested offset, which is not an error."""
    if first.kind != "offset" or log.first_offset <= first.value <= log.next_offset:
        return
    held = f"contains offsets {log.first_offset} to {log.next_offset - 1}"
    held = held if log.next_offset > log.first_offset else f"is empty; the next offset is {log.next_offset}"
    print(f"note: {log.path} {held}, not {first.value}", file=sys.stderr)


def _bounds(log: Log, first: LogPosition, last: LogPosition | None) -> dict[str, Any]:
    """The positions as arguments of `Log.batches`."""
    bounds: dict[str, Any] = {}
    for side, place in (("from", first), ("to", last)):
        if place is None or (side, place.kind) == ("from", "beginning"):
            continue  # not an offset: retention may move the beginning before it is read
        if place.kind == "time":
            bounds[f"{side}_time"] = place.time
        elif place.kind == "end" or place == LogPosition("last", 0):
            bounds[f"{side}_offset"] = log.next_offset
        elif place.kind == "last":
            bounds[f"{side}_offset"] = -place.value
        else:
            bounds[f"{side}_offset"] = place.value
    return bounds
