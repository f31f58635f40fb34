"""Options that several verbs of `duramen pipeline` share, declared once as dataclasses, and `verb`, which expands them.

A verb is a function that does the work and returns the exit code::

    @verb(app, "verify")
    def verify(path: LogPath, log: LogOptions, spark: SparkOptions) -> int: ...

On the command line each field of a dataclass is an option of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, get_type_hints

import typer

from duramen.cli.arguments import (
    Decode,
    DecodeKey,
    FormatName,
    FormatOptions,
    Job,
    KeySchema,
    OnMalformed,
    Registry,
    Target,
    ValueSchema,
)
from duramen.cli.usage import Command
from duramen.values import Decoding


@dataclass(frozen=True)
class SparkOptions:
    """How to start Spark."""

    master: Annotated[str, typer.Option("--master", metavar="URL", help="Spark master; local[N] uses N cores.")] = (
        "local[*]"
    )
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="K=V", help="Spark configuration; repeatable.")
    ] = None
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Spark's own log on standard error.")] = False


@dataclass(frozen=True)
class LogOptions:
    """Format of the log that a verb reads."""

    format: FormatName = None
    option: FormatOptions = None

    def target(self, path: str, *, topics: bool = False) -> Target:
        """The log at ``path``; unless it is a store with topics, check that it is a log before a JVM starts."""
        target = Target.of(path, self.format, self.option)
        if not topics:
            _ = target.codec
        return target


@dataclass(frozen=True)
class RangeOptions:
    """The records to read."""

    start: Annotated[
        str | None, typer.Option("--from", metavar="OFFSET", help="First offset, or -N for the last N.")
    ] = None
    end: Annotated[str | None, typer.Option("--to", metavar="OFFSET", help="Stop before this offset.")] = None
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="TIME", help="First time: ISO 8601 or epoch milliseconds.")
    ] = None
    to_time: Annotated[str | None, typer.Option("--to-time", metavar="TIME", help="Stop before this time.")] = None
    subscribe: Annotated[
        str | None, typer.Option("--subscribe", metavar="TOPICS", help="Topics of a store, separated by commas.")
    ] = None

    def reading(self) -> dict[str, str]:
        """The range as options of the data source."""
        given = {
            "startingOffsets": self.start, "endingOffsets": self.end, "startingTimestamp": self.from_time,
            "endingTimestamp": self.to_time, "subscribe": self.subscribe,
        }  # fmt: skip
        return {name: text for name, text in given.items() if text is not None}


@dataclass(frozen=True)
class DecodeArguments:
    """How to decode values and keys."""

    decode: Decode = None
    decode_key: DecodeKey = None
    value_schema: ValueSchema = None
    key_schema: KeySchema = None
    registry: Registry = None
    on_malformed: OnMalformed = None

    def options(self) -> dict[str, str]:
        """The arguments of a decoding, checked before a JVM starts."""
        given = {name: text for name, text in asdict(self).items() if text is not None}
        Decoding.of(given)
        return given


def verb(app: typer.Typer, name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function as a verb. Parameters that are dataclasses become one option per field."""

    def register(function: Callable[..., int]) -> Callable[..., int]:
        hints = get_type_hints(function, include_extras=True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, Any] = {}
        for one in inspect.signature(function).parameters.values():
            kind = hints[one.name]
            if is_dataclass(kind):
                groups[one.name] = kind
                own = get_type_hints(kind, include_extras=True)
                parameters += [_parameter(field.name, field.default, own[field.name]) for field in fields(kind)]
            else:
                parameters.append(_parameter(one.name, one.default, kind))

        def command(**given: Any) -> Job:
            for group, kind in groups.items():
                given[group] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            return partial(function, **given)

        command.__doc__ = function.__doc__
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name, cls=Command)(command)
        return function

    return register


def _parameter(name: str, default: Any, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
