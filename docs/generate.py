"""Makes the reference pages that the code already knows: ``python -m docs.generate``.

Writes docs/reference/{cli,options,errors,metrics}.md and the tables in docs/recovery.md and docs/spark.md;
with ``--check`` it only prints which of them are out of date (exit code 1). What a verb, an error, a metric or a case
means is taken from where it is defined; only the meaning of an option of a format is kept here, and an option without
one stops the run. mkdocstrings shows the Python names: see reference/api.md.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from duramen import errors
from duramen.cli.verbs import VERBS, load
from duramen.formats import FORMATS
from duramen.formats.kafka.encoder import BATCH_MAX_BYTES
from duramen.formats.kafka.indexes import INDEX_MAX_BYTES, INDEX_STRIDE_BYTES
from duramen.formats.keratin.manifest import Manifest
from duramen.formats.osiris.chunk import MAX_UNCOMPRESSED_BYTES
from duramen.formats.osiris.osiris import CHUNK_MAX_BYTES, CHUNK_MAX_RECORDS, SUB_BATCH_RECORDS
from duramen.formats.rustlog import INDEX_INTERVAL_RECORDS
from duramen.log.recover import markdown_table
from duramen.log.transfer import convert as _convert  # noqa: F401  # it defines an error
from duramen.log.write.writable_log import WritableLog
from duramen.metrics.declared import METRICS
from duramen.spark.source.declared import kafka_table, options_list

PAGES = Path(__file__).parent / "reference"
NOTE = "<!-- Made by `python -m docs.generate` from the code. Changes go there. -->\n"

# --- the command line


class Verb(typing.NamedTuple):
    name: str
    function: Callable[..., Any]


def verbs() -> Iterator[Verb]:
    """Every verb in the order of ``duramen --help``."""
    for name in VERBS:
        verb = load(name)
        if not isinstance(verb, typer.Typer):
            yield Verb(f"duramen {name}", verb)
            continue
        for command in verb.registered_commands:
            assert command.callback is not None
            yield Verb(f"duramen {name} {command.name}", command.callback)


def cli_page() -> str:
    listed = list(verbs())
    shared = shared_options(listed)
    lines = [
        NOTE,
        "# Command line\n",
        "Every verb has `--help`. Exit codes: 0 success, 1 damage found, 2 wrong usage, 3 cannot read or write, 70 a",
        "bug in duramen (with a traceback to report), 130 Ctrl-C, 143 SIGTERM. Every verb that takes a log also takes",
        "`ROOT#topic/partition`, and [most take many logs](../store.md#on-the-command-line).",
        "`duramen --install-completion` installs completion for bash, zsh, fish or PowerShell.\n",
        "Arguments and options that several verbs share:\n",
        *(item(one) for one in shared),
        "",
        *(line for verb in listed for line in section(verb, shared)),
    ]
    return "\n".join(lines)


Parameter = tuple[str, str, str]
"""An argument or option: name, default, help."""


def shared_options(listed: list[Verb]) -> list[Parameter]:
    """What two verbs or more have with the same default and help: the most common one of each name."""
    counted = Counter(one for verb in listed for kind in parameters(verb.function) for one in kind)
    by_name = {one[0]: one for one, count in reversed(counted.most_common()) if count >= 2}
    return list(by_name.values())[::-1]


def item(parameter: Parameter) -> str:
    name, default, text = parameter
    required = " Required." if name.startswith("-") else ""
    ending = {"": "", "``": "", "required": required}.get(default, f" Default: {default}.")
    return f"- `{name}`: {' '.join(text.split())}{ending}"


def about(verb: Verb) -> list[str]:
    """The paragraphs of a verb's help."""
    return [part.strip("\n") for part in (inspect.getdoc(verb.function) or "").split("\n\n")]


def section(verb: Verb, shared: list[Parameter]) -> Iterator[str]:
    arguments, options = parameters(verb.function)
    usage = " ".join([verb.name, *(name for name, *_ in arguments), *(["[OPTIONS]"] if options else [])])
    yield f"## {verb.name}\n"
    yield f"```text\n{usage}\n```\n"
    for paragraph in about(verb):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph[2:]}\n```\n"
        else:
            yield f"{prose(paragraph)}\n"
    if own := [one for one in (*arguments, *options) if one not in shared]:
        yield from map(item, own)
        yield ""
    if common := [name.split()[0] for name, *_ in (option for option in options if option in shared)]:
        yield f"Shared: {', '.join(f'`{name}`' for name in common)}.\n"


def parameters(function: Callable[..., Any]) -> tuple[list[Parameter], list[Parameter]]:
    """Arguments and options as (name, default, help)."""
    hints = typing.get_type_hints(function, include_extras=True)
    arguments, options = [], []
    for parameter in inspect.signature(function).parameters.values():
        if hints[parameter.name] is typer.Context:
            continue
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
            first = [info.default] if isinstance(info.default, str) else []  # typer's reading of Annotated
            names = ", ".join([*first, *(info.param_decls or [])] or [f"--{parameter.name.replace('_', '-')}"])
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

SHARED = ("dialect", "segment_max_bytes", "segment_max_age_ms")

MEANINGS: Mapping[str, tuple[str, str]] = {
    "segment_max_bytes": ("", "size at which the writer starts a new segment"),
    "segment_max_age_ms": ("", "age of the first record at which the writer seals the segment, idle or not"),
    "index_stride_bytes": (
        f"{Manifest.index_stride_bytes:,}; kafka: {INDEX_STRIDE_BYTES:,}",
        "bytes of records per index entry",
    ),
    "index_max_bytes": (f"{INDEX_MAX_BYTES:,}", "the writer starts a new segment before an index can exceed it"),
    "max_open_segments": (
        f"{Manifest.max_open_segments}",
        "segments that a log keeps mapped, at most 64, each with up to three descriptors",
    ),
    "index_interval_records": (f"{INDEX_INTERVAL_RECORDS}", "records per index entry"),
    "dialect": (
        "document",
        "`document`: what the format's document says; `program`: what its own program reads and writes",
    ),
    "filter_bytes": (
        "0",
        "size of a chunk's Bloom filter, 16 to 255, or 0 for none; 16 with `filter_by`",
    ),
    "filter_by": (
        "",
        "filter value of a record: `prefix:N`, `delimiter:TEXT`, `json:PATH`, or a Python function to bytes or None",
    ),
    "manifest_version": ("1", "version of the manifest with `dialect=program`: 1, or 2 for newer programs"),
    "header_bytes": ("20", "20 as in the document, or 12 as the program writes, without a time"),
    "chunk_version": ("1", "1 as in the document, or 0, which RabbitMQ reads and writes"),
    "compression": ("none", "`none`, `gzip`, `snappy`, `lz4` or `zstd`; of sub-batches, or of batches"),
    "epoch": ("1", "epoch of the chunks of a new log; an existing log keeps its own"),
    "chunk_max_bytes": (f"{CHUNK_MAX_BYTES:,}", "largest size of a chunk"),
    "chunk_max_records": (f"{CHUNK_MAX_RECORDS:,}", "largest number of records in a chunk"),
    "sub_batch_records": (f"{SUB_BATCH_RECORDS:,}", "records of one sub-batch; if given, also without compression"),
    "max_uncompressed_bytes": (
        f"{MAX_UNCOMPRESSED_BYTES:,}",
        "the reader refuses a sub-batch or batch that claims more, which bounds memory",
    ),
    "record_size": ("", "length of every value; required to create a log"),
    "pad": ("none", 'byte that fills short values up to `record_size`: `b"\\0"` in Python, `0x00` as text'),
    "lost_slots": ("none", "slots that hold no record, `3,7-9`; repair sets it"),
    "batch_max_bytes": (f"{BATCH_MAX_BYTES:,}", "most record bytes of a batch"),
    "leader_epoch": ("that of the log, or 0", "epoch of new batches; a higher one starts an epoch"),
    "topic_id": ("", "id of the topic, for `partition.metadata` where that is missing"),
    "isolation": (
        "read_uncommitted",
        "`read_committed` hides aborted transactions and ends at open ones; `settled` hides both",
    ),
    "log_start_offset": ("0", "readers see no record before it"),
    "aborted": ("", "aborted transactions, `PRODUCER:FIRST-LAST,…`; the reader sets it"),
}

WRITER: Mapping[str, str] = {
    "durability": "`fsync`, `interval` or `write`, what an append waits for; a call can override it",
    "sync_interval_ms": "how soon a sync follows an append at `interval`; see [Durability](../durability.md)",
    "sync_interval_records": "the same, as a number of records",
    "sync_interval_bytes": "the same, as a number of bytes",
    "max_batch_bytes": "largest size of a commit group",
    "max_batch_records": "largest number of records in a commit group",
    "linger_ms": "how long the leader of a group waits for more appends",
    "queue_bytes": "bytes that may wait; further appenders block",
    "preallocate_bytes": "zeros written ahead of the records; see [Preallocation](../durability.md#preallocation)",
    "on_damage": "`raise`, or `truncate` to cut damage in the active segment after copying it",
    "create": "`False` raises if no log exists",
    "clock": "function that returns the current time in nanoseconds",
    "timer": "`False`: the writer syncs and seals only in calls of its user, `run_due` included",
    "retention": "rules applied while the log is open; see [Retention](../life.md)",
    "retention_interval_s": "seconds between two runs of retention",
    "disk": "replacement of the real disk; see [Test your own format](../how-to/test-your-own-format.md)",
}


def options_page() -> str:
    lines = [
        NOTE,
        "# Options\n",
        "Options of a format are keyword arguments of `duramen.open(path, 'a', …)` and of `duramen.convert`,",
        "`--option K=V` on the command line, and `.option('K', V)` in Spark. A log remembers its own in",
        "`.duramen/log.json`; *fixed* ones hold for its life. Options of Spark's source and sink are in",
        "[Logs in Spark](../spark.md) and [Exactly once](../exactly-once.md).\n",
        "## Several formats\n",
        *(f"- `{option}`: {MEANINGS[option][1]}." for option in SHARED),
        "- `dialect` is fixed in "
        + ", ".join(n for n, kind in FORMATS.items() if "dialect" in kind.fixed_options)
        + ".",
        "",
    ]
    for name, kind in FORMATS.items():
        lines.append(f"## {name}\n")
        for option, of in kind.option_names.items():
            if option in SHARED:
                continue
            default, meaning = MEANINGS[option]
            fixed = ", fixed" if option in kind.fixed_options else ""
            lines.append(f"- `{option}` ({of.__name__}{fixed}): {meaning}.{default and f' Default: {default}.'}")
        sizes = (number(kind.default_segment_bytes), number(kind.default_segment_age_ms))
        if "segment_max_bytes" in kind.option_names:
            defaults = f"`segment_max_bytes` {sizes[0]}" + (f", `segment_max_age_ms` {sizes[1]}" if sizes[1] else "")
            lines.append(f"- Defaults: {defaults}.")
        lines.append("")
    lines += ["## The writer\n", 'Arguments of `duramen.open(path, "a", …)` that belong to no format.\n']
    taken = inspect.signature(WritableLog.__init__).parameters
    for argument in taken.values():
        if argument.kind is argument.KEYWORD_ONLY and argument.name != "format":
            default = number(argument.default)
            lines.append(f"- `{argument.name}`: {WRITER[argument.name]}.{default and f' Default: {default}.'}")
    return "\n".join([*lines, ""])


def number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


# --- errors


def errors_page() -> str:
    lines = [
        NOTE,
        "# Errors\n",
        "All derive from `duramen.DuramenError` and have `message`, `path`, `position` (a byte in a file), `offset`",
        "(of a record) and `hint`, None where it does not apply. All survive pickling. The number in parentheses is",
        "the exit code of the command line.\n",
    ]
    for kind, depth in tree(errors.DuramenError):
        also = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if not issubclass(base, errors.DuramenError))
        also = f", also a {also}" if also and kind is not errors.DuramenError else ""
        meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"{'    ' * depth}- `{kind.__name__}` ({kind.exit_code}{also}): {prose(meaning)}")
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
        "`duramen serve` exposes these under `/metrics`, and OpenTelemetry receives them: [Watching](../watching.md).",
        "In parentheses: kind, unit, labels.\n",
    ]
    for metric in METRICS.values():
        facts = ", ".join([metric.kind, metric.unit, *(f"`{label}`" for label in metric.labels)])
        lines.append(f"- `{metric.name}` ({facts}): {' '.join(metric.meaning.split())}")
    return "\n".join([*lines, ""])


# --- tables in pages

RECOVERY = Path(__file__).parent / "recovery.md"
SPARK = Path(__file__).parent / "spark.md"
TABLE_STARTS, TABLE_ENDS = "<!-- table -->", "<!-- end -->"


# --- all of them


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """A docstring's double backticks as Markdown has them."""
    return text.replace("``", "`")


def with_tables(path: Path, tables: Mapping[str, str]) -> str:
    """A page with tables of the code in their places, by the mark before them."""
    text = path.read_text(encoding="utf-8")
    for mark, table in tables.items():
        before, _, rest = text.partition(mark)
        _, _, after = rest.partition(TABLE_ENDS)
        text = f"{before}{mark}\n\n{table}\n\n{TABLE_ENDS}{after}"
    return text


def pages() -> dict[Path, str]:
    return {
        RECOVERY: with_tables(RECOVERY, {TABLE_STARTS: markdown_table()}),
        SPARK: with_tables(SPARK, {"<!-- options -->": options_list(), "<!-- kafka -->": kafka_table()}),
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
            sys.stderr.write(f"{path}: out of date; `python -m docs.generate` regenerates it\n")
        return 1 if found else 0
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
