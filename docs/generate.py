"""Makes the reference pages that the code already knows: ``python -m docs.generate``.

Writes docs/reference/{cli,options,errors,metrics}.md, and with ``--check`` only says which of them are out of date
(exit code 1). What a verb, an error or a metric means is taken from where it is defined; only the meaning of an option
is kept here, and one without stops the run. The Python names are shown by mkdocstrings: see reference/api.md.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from duramen import errors
from duramen.cli import main as cli
from duramen.formats import FORMATS
from duramen.formats.base import Format
from duramen.formats.keratin_manifest import Manifest
from duramen.formats.osiris import CHUNK_MAX_BYTES, CHUNK_MAX_RECORDS, SUB_BATCH_RECORDS
from duramen.formats.osiris_chunk import MAX_UNCOMPRESSED_BYTES
from duramen.formats.rustlog import INDEX_INTERVAL_RECORDS
from duramen.log import convert as _convert  # noqa: F401  # it defines an error
from duramen.log.writer import WritableLog
from duramen.metrics.declared import METRICS

PAGES = Path(__file__).parent / "reference"
NOTE = "<!-- Made by `python -m docs.generate` from the code. Changes go there. -->\n"

# --- the command line


class Verb(typing.NamedTuple):
    name: str
    function: Callable[..., Any]


def verbs(app: typer.Typer, prefix: str = "duramen") -> Iterator[Verb]:
    """Every verb in the order of ``duramen --help``, those of groups behind the others."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield Verb(f"{prefix} {command.name}", command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from verbs(group.typer_instance, f"{prefix} {group.name}")


def cli_page() -> str:
    listed = list(verbs(cli.app))
    lines = [
        NOTE,
        "# Command line\n",
        "Every verb has `--help`. Exit codes: 0 fine, 1 damage found, 2 wrong usage, 3 cannot read or write; 70 a bug",
        "of duramen, with a traceback to report; 130 after ctrl-C, 143 after SIGTERM. Wherever a verb takes a log it",
        "takes `ROOT#topic/partition`, too.\n",
        "| verb | does |",
        "|---|---|",
        *(f"| [`{verb.name}`](#{verb.name.replace(' ', '-')}) | {cell(about(verb)[0])} |" for verb in listed),
        "",
        *(line for verb in listed for line in section(verb)),
    ]
    return "\n".join(lines)


def about(verb: Verb) -> list[str]:
    """The paragraphs of a verb's help."""
    return [part.strip("\n") for part in (inspect.getdoc(verb.function) or "").split("\n\n")]


def section(verb: Verb) -> Iterator[str]:
    arguments, options = parameters(verb.function)
    usage = " ".join([verb.name, *(name for name, *_ in arguments), *(["[OPTIONS]"] if options else [])])
    yield f"## {verb.name}\n"
    yield f"```text\n{usage}\n```\n"
    for paragraph in about(verb):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph[2:]}\n```\n"
        else:
            yield f"{prose(paragraph)}\n"
    if arguments or options:
        yield "| argument or option | default | |\n|---|---|---|"
        for name, default, text in (*arguments, *options):
            yield f"| `{cell(name)}` | {default} | {cell(text)} |"
        yield ""


def parameters(function: Callable[..., Any]) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Arguments and options as (name, default, help)."""
    hints = typing.get_type_hints(function, include_extras=True)
    arguments, options = [], []
    for parameter in inspect.signature(function).parameters.values():
        kind, *marks = typing.get_args(hints[parameter.name])
        info = next((mark for mark in marks if hasattr(mark, "param_decls")), None)
        if info is None or info.hidden:
            continue
        default = parameter.default
        text = info.help or ""
        if isinstance(info, typer.models.ArgumentInfo):
            name = info.metavar or parameter.name.upper()
            required = default in (inspect.Parameter.empty, ...)
            arguments.append((name if required else f"[{name}]", shown(default), text))
        else:
            names = ", ".join(info.param_decls or [f"--{parameter.name.replace('_', '-')}"])
            options.append((f"{names}{value_of(kind, info.metavar)}", shown(default), text))
    return arguments, options


def value_of(kind: Any, metavar: str | None) -> str:
    """What an option is followed by: nothing for a switch, the choices of an enumeration, or its metavar."""
    kinds = [kind, *typing.get_args(kind)]
    if bool in kinds:
        return ""
    choices = next((one for one in kinds if isinstance(one, type) and issubclass(one, Enum)), None)
    if choices is not None:
        return " " + "|".join(str(choice.value) for choice in choices)
    return f" {metavar or 'VALUE'}"


def shown(default: Any) -> str:
    if default in (inspect.Parameter.empty, ...):
        return "required"
    if default is None or default is False or default == []:
        return ""
    return f"`{cell(str(default.value if isinstance(default, Enum) else default))}`"


# --- options of the formats

MEANINGS: Mapping[str, tuple[str, str]] = {
    "segment_max_bytes": ("", "when a new segment is begun, by size"),
    "segment_max_age_ms": ("", "when a new segment is begun, by the age of its first record"),
    "index_stride_bytes": (f"{Manifest.index_stride_bytes:,}", "an index entry after so many bytes of records"),
    "max_open_segments": (f"{Manifest.max_open_segments}", "a number that the manifest carries for Keratin itself"),
    "index_interval_records": (f"{INDEX_INTERVAL_RECORDS}", "an index entry for each so many records"),
    "header_bytes": ("20", "20 as the document says, or 12 as the program writes (then records have no time)"),
    "chunk_version": ("1", "0 or 1: what a RabbitMQ from before or since that version writes"),
    "compression": ("none", "`none`, `gzip`, `snappy`, `lz4` or `zstd`: records go into sub-batches"),
    "epoch": ("1", "the epoch that chunks carry; a log that is there goes on with its own"),
    "chunk_max_bytes": (f"{CHUNK_MAX_BYTES:,}", "a chunk is ended before it has more bytes"),
    "chunk_max_records": (f"{CHUNK_MAX_RECORDS:,}", "a chunk is ended after so many records"),
    "sub_batch_records": (f"{SUB_BATCH_RECORDS:,}", "records of one compressed sub-batch"),
    "max_uncompressed_bytes": (f"{MAX_UNCOMPRESSED_BYTES:,}", "a sub-batch that claims more is refused: bounds memory"),
    "record_size": ("", "the length that every value has; needed to make a log"),
    "lost_slots": ("none", "slots that hold no record any more, `3,7-9`: kept by repair, not for people"),
}

WRITER: Mapping[str, str] = {
    "durability": "`fsync` or `write`: what an append waits for, unless the call says otherwise",
    "max_batch_bytes": "bytes of one commit group",
    "max_batch_records": "records of one commit group",
    "linger_ms": "how long the leader of a group waits for more",
    "queue_bytes": "what may wait: beyond it appenders do",
    "preallocate_bytes": "zeros that are written ahead of the records, which makes syncs cheaper; 0: none. See "
    "[Preallocation](../durability.md#preallocation)",
    "on_damage": "`raise`, or `truncate`: cut damage in the active segment, after a copy was made",
    "create": "`False`: where no log of ours is, that is an error, and nothing is made",
    "clock": "where times come from, as a function that answers microseconds",
    "retention": "rules that are applied while the log is open: see [Retention](../life.md)",
    "retention_interval_s": "how often they are",
    "disk": "another disk than the real one: see [Test your own format](../how-to/test-your-own-format.md)",
}


def options_page() -> str:
    lines = [
        NOTE,
        "# Options\n",
        "Options of a format are keyword arguments of `duramen.open(path, 'a', …)` and of `duramen.convert`,",
        "`--option K=V` on the command line, and `.option('K', V)` in Spark. A log remembers its own in",
        "`.duramen/log.json`; *fixed* ones hold for its life. Options of Spark's source and sink are in",
        "[Logs in Spark](../spark.md) and [Exactly once](../exactly-once.md).\n",
    ]
    for name, kind in FORMATS.items():
        lines += [f"## {name}\n", "| option | type | default | fixed | meaning |", "|---|---|---|---|---|"]
        for option, of in kind.option_names.items():
            default, meaning = MEANINGS[option]
            fixed = "yes" if option in kind.fixed_options else ""
            lines.append(
                f"| `{option}` | {of.__name__} | {segment_default(kind, option, default)} | {fixed} | {meaning} |"
            )
        lines.append("")
    lines += ["## The writer\n", 'Arguments of `duramen.open(path, "a", …)` that belong to no format.\n']
    lines += ["| argument | default | meaning |", "|---|---|---|"]
    taken = inspect.signature(WritableLog.__init__).parameters
    for argument in taken.values():
        if argument.kind is argument.KEYWORD_ONLY and argument.name != "format":
            lines.append(f"| `{argument.name}` | {number(argument.default)} | {WRITER[argument.name]} |")
    return "\n".join([*lines, ""])


def segment_default(kind: type[Format], option: str, default: str) -> str:
    known = {"segment_max_bytes": kind.default_segment_bytes, "segment_max_age_ms": kind.default_segment_age_ms}
    return number(known[option]) if option in known else default


def number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


# --- errors


def errors_page() -> str:
    lines = [
        NOTE,
        "# Errors\n",
        "All derive from `duramen.DuramenError` and have `message`, `path`, `position` (a byte in a file), `offset`",
        "(of a record) and `hint`, None where it does not apply. All survive pickling. The exit code is that of the",
        "command line.\n",
        "| error | also a | exit code | raised when |",
        "|---|---|---|---|",
    ]
    for kind, depth in tree(errors.DuramenError):
        also = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if not issubclass(base, errors.DuramenError))
        indent = "&emsp;" * depth
        also = "" if kind is errors.DuramenError else also
        meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| {indent}`{kind.__name__}` | {also} | {kind.exit_code} | {cell(prose(meaning))} |")
    return "\n".join([*lines, ""])


def tree(kind: type[errors.DuramenError], depth: int = 0) -> Iterator[tuple[type[errors.DuramenError], int]]:
    yield kind, depth
    for below in sorted(kind.__subclasses__(), key=lambda one: one.__name__):
        if below.__module__.startswith("duramen."):
            yield from tree(below, depth + 1)


# --- metrics


def metrics_page() -> str:
    lines = [
        NOTE,
        "# Metrics\n",
        "What `duramen serve` shows under `/metrics`, and what OpenTelemetry is handed: [Watching](../watching.md).\n",
        "| metric | kind | unit | labels | meaning |",
        "|---|---|---|---|---|",
    ]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {cell(metric.meaning)} |")
    return "\n".join([*lines, ""])


# --- all of them


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """A docstring's double backticks as Markdown has them."""
    return text.replace("``", "`")


def pages() -> dict[Path, str]:
    return {
        PAGES / "cli.md": cli_page(),
        PAGES / "options.md": options_page(),
        PAGES / "errors.md": errors_page(),
        PAGES / "metrics.md": metrics_page(),
    }


def stale() -> list[Path]:
    return [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    if "--check" in sys.argv[1:]:
        found = stale()
        for path in found:
            sys.stderr.write(f"{path}: out of date; `python -m docs.generate` makes it anew\n")
        return 1 if found else 0
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
