"""The public names and their types: what a program that embeds Duramen sees, and what its type checker notices."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import pytest

import duramen
from duramen.formats import FORMATS, FormatOptions
from duramen.log import AppendOptions, ReaderOptions, WriterOptions
from duramen.log import WritableLog as EngineLog

ROOT = Path(__file__).parent.parent


def test_every_type_that_a_call_takes_or_returns_has_a_public_name() -> None:
    """No annotation of a public method names a class of Duramen that the caller would have to look for."""
    kinds = {name: kind for name, kind in vars(duramen).items() if name in duramen.__all__ and isinstance(kind, type)}
    public = set(kinds.values())
    for name, kind in kinds.items():
        for method in [member for _, member in inspect.getmembers(kind, inspect.isfunction)]:
            if method.__name__.startswith("_") or not method.__module__.startswith("duramen."):
                continue
            result = typing.get_type_hints(method).get("return")
            for found in (result, *typing.get_args(result)):
                if isinstance(found, type) and found.__module__.startswith("duramen."):
                    assert found in public or found.__qualname__ in INTERNAL, f"{name}.{method.__name__} -> {found}"


INTERNAL = {
    "Appender",
    "Directory",
    "Snapshot",
    "SegmentEnd",
    "Scan",
    "MappedSegment",
    "Located",
    "ProducerTable",
    "Need",
}
"""Results of methods that the engine's own packages call."""


def test_the_reference_lists_every_public_name() -> None:
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    assert [name for name in duramen.__all__ if name not in page] == []


def test_what_open_returns_has_the_public_types(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        assert type(log) is duramen.WritableLog
        assert isinstance(log, duramen.Log)
        assert isinstance(log.group("g"), duramen.Group)
        assert isinstance(log.cursor("c"), duramen.Cursor)
        assert isinstance(log.producer("p"), duramen.Producer)
    with duramen.open(tmp_path / "log") as log:
        assert isinstance(log, duramen.Log)
        assert not isinstance(log, duramen.WritableLog)


# --- options as types


def test_the_typed_options_are_those_of_the_formats() -> None:
    declared = typing.get_type_hints(FormatOptions)
    known = {name: kind for format in FORMATS.values() for name, kind in format.option_names.items()}
    assert declared.keys() == known.keys()
    for name, kind in known.items():
        assert kind in (declared[name], *typing.get_args(declared[name])), name


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_refuses_the_options_of_others_only(format: str, tmp_path: Path) -> None:
    for option in typing.get_type_hints(FormatOptions):
        if option in FORMATS[format].option_names:
            continue
        with pytest.raises(duramen.UsageError, match=f"{format} has no option {option}"):
            duramen.open(tmp_path / "log", "a", format=format, **{option: 1})  # type: ignore[call-overload]


def test_the_typed_options_of_the_writer_are_its_arguments() -> None:
    def arguments(call: typing.Any) -> dict[str, typing.Any]:
        hints = typing.get_type_hints(call)
        taken = inspect.signature(call).parameters.values()
        return {
            each.name: hints[each.name] for each in taken if each.kind is each.KEYWORD_ONLY and each.name != "format"
        }

    of_formats = typing.get_type_hints(FormatOptions)
    for call, kind in ((EngineLog.__init__, AppendOptions), (duramen.log.Log.__init__, ReaderOptions)):
        declared = typing.get_type_hints(kind)
        assert declared == {**of_formats, **arguments(call)}
    assert typing.get_type_hints(WriterOptions).keys() == arguments(EngineLog.__init__).keys() - {"disk"}


@pytest.mark.slow
def test_mypy_notices_a_misspelt_option(tmp_path: Path) -> None:
    """Every entry point that takes options."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    right = textwrap.dedent("""
        import duramen, duramen.aio
        duramen.open("log", "a", format="keratin", segment_max_bytes=1, durability="write", index_stride_bytes=4096)
        duramen.open("log", record_size=8)
        duramen.convert("log", "new", to="osiris", chunk_version=0, source_options={"record_size": 8})
        duramen.aio.open("log", "a", segment_max_bytes=1, retention=duramen.Retention(max_bytes=1))
        duramen.Store("data", linger_ms=2).create("topic", segment_max_bytes=1)
        """)
    program.write_text(right + right.replace("_max_", "_mx_").replace("record_size", "record_sise")
                       .replace("chunk_version", "chunk_wersion").replace("linger_ms", "linger"))  # fmt: skip
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    after = right.count("\n")
    assert set(lines) == {after + number for number in (3, 4, 5, 6, 7)}, done.stdout


HEAVY = {
    "asyncio", "email", "http.client", "pandas", "pyarrow.compute", "pyarrow.fs", "pydantic", "pyspark", "rich", "ssl",
    "tempfile", "typer", "urllib.request",
}  # fmt: skip
"""Modules that take long to import and that most programs never use."""


def test_what_takes_long_to_import_waits_until_it_is_used(tmp_path: Path) -> None:
    code = f"""
        import sys, duramen
        def show(): print(sorted({HEAVY!r} & set(sys.modules)))
        show()
        with duramen.open(sys.argv[1], "a") as log:
            log.append(b"value", key=b"key")
            list(log.scan(0))
        show()
        assert len(list(duramen.open(sys.argv[1]).scan(from_time=0))) == 1
        show()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "log")]
    shown = subprocess.check_output(command, text=True).splitlines()
    assert shown == ["[]", "['pyarrow.compute']", "['pyarrow.compute']"]
