"""Printing: units, tables, colours, JSON and progress bars. The verbs decide what to print.

Colours and progress bars appear on terminals only; ``NO_COLOR`` turns colours off. Piped text is never cut or wrapped.
Names and messages may contain any character: none is interpreted as markup or reaches a terminal as a control sequence.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from duramen.log import Progress
from duramen.record import from_us

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100_000
"""Width of a pipe: nothing is ever wrapped."""
BAR_FROM_BYTES = 32 << 20
"""Smaller jobs end before a progress bar would be readable."""

STYLES = {
    "heading": "bold",
    "label": "dim",
    "good": "green",
    "note": "cyan",
    "warning": "yellow",
    "damage": "bold red",
    "prompt": "bold blue",
    "position": "cyan",
    "name": "bold",
}

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_IN_VALUES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TIME_NAME = re.compile(r"(?:^|_)(?:ts|timestamp)(?:_(ms|us))?$")
_US = {"ms": 1000, "us": 1}


# --- units


def size(size_bytes: int) -> str:
    """A readable number of bytes.

    >>> size(17), size(1536), size(3 << 30)
    ('17 B', '1.5 KiB', '3.0 GiB')
    """
    if size_bytes < 1024:
        return f"{size_bytes} B"
    step = min((size_bytes.bit_length() - 1) // 10, 4)
    return f"{size_bytes / 1024**step:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[step - 1]}"


def exact_size(size_bytes: int) -> str:
    """A readable number of bytes, with the exact number.

    >>> exact_size(1536)
    '1.5 KiB (1,536 B)'
    """
    return size(size_bytes) if size_bytes < 1024 else f"{size(size_bytes)} ({size_bytes:,} B)"


def number(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun.

    >>> number(1, "segment"), number(1234, "record"), number(2, "index", "indexes")
    ('1 segment', '1,234 records', '2 indexes')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0123), duration(2.345), duration(125)
    ('12 ms', '2.3 s', '2 min 5 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def rate(size_bytes: int, seconds: float) -> str:
    """
    >>> rate(3_200_000_000, 2), rate(5_000_000, 2), rate(9, 0)
    ('1.60 GB/s', '2.5 MB/s', '')
    """
    if seconds <= 0 or not size_bytes:
        return ""
    per_second = size_bytes / seconds
    return f"{per_second / 1e9:.2f} GB/s" if per_second >= 1e8 else f"{per_second / 1e6:.1f} MB/s"


def offsets(first: int | None, last: int | None) -> str:
    """
    >>> offsets(3, 3), offsets(3, 9), offsets(3, None), offsets(None, None)
    ('offset 3', 'offsets 3 to 9', 'from offset 3 on', '')
    """
    if first is None:
        return ""
    if last is None or last < first:
        return f"from offset {first} on"
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def moment(name: str, value: int, unit: str | None) -> str | None:
    """The time in a field whose name marks it as a timestamp.

    >>> moment("created_ts_ms", 1_700_000_000_000, None)
    '2023-11-14T22:13:20Z'
    """
    found = _TIME_NAME.search(name)
    unit = found[1] or unit if found else None
    when = from_us(value * _US[unit]) if unit is not None and value > 0 else None
    return None if when is None else when.isoformat().replace("+00:00", "Z")


def safe(text: str) -> str:
    """Text on one line, with control characters escaped.

    >>> safe("a\\x1b[2Jb\\nc")
    'a\\\\x1b[2Jb\\\\nc'
    """
    return _CONTROL.sub(_escaped, text)


def safe_value(text: str) -> str:
    """Like `safe`, but keeps line feeds and tabs."""
    return _CONTROL_IN_VALUES.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON with bytes as text; bytes that are not UTF-8 are escaped."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, default=_plain)
    return text.encode("utf-8", "backslashreplace").decode() if not text.isascii() else text


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


# --- text


class Cell(NamedTuple):
    """Text in one of the `STYLES`."""

    text: str
    style: str = ""


class Column(NamedTuple):
    title: str
    right: bool = False


class Output:
    """Writes text to a stream: coloured and wrapped on a terminal, plain and never wrapped otherwise."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self.is_terminal = self._stream.isatty()

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        plain = bool(os.environ.get("NO_COLOR")) or not self.is_terminal
        return Console(
            file=self._stream, color_system=None if plain else "auto", highlight=False, markup=False, emoji=False,
            width=None if self.is_terminal else PLAIN_WIDTH,
        )  # fmt: skip

    @cached_property
    def width(self) -> int:
        return self._console.width if self.is_terminal else PLAIN_WIDTH

    @cached_property
    def _paints(self) -> bool:
        return self.is_terminal and self._console.color_system is not None

    def paint(self, text: str, style: str) -> str:
        """The text with the control sequences of a style, if the stream shows colours."""
        if not style or not self._paints:
            return text
        from rich.style import Style

        return str(Style.parse(STYLES.get(style, style)).render(text))

    def write(self, text: str) -> None:
        self._stream.write(text)

    def line(self, *parts: str | Cell) -> None:
        """Write one line; control characters are escaped."""
        cells = [part if isinstance(part, Cell) else Cell(part) for part in parts]
        self.write("".join(self.paint(safe(cell.text), cell.style) for cell in cells) + "\n")

    def blank(self) -> None:
        self.write("\n")

    def heading(self, text: str) -> None:
        self.line(Cell(text, "heading"))

    def paragraph(self, text: str, *, indent: str = "", hanging: str | None = None, style: str = "") -> None:
        """Write text wrapped to the terminal's width, or as one line to a pipe."""
        wrapped = textwrap.wrap(
            safe(text), max(self.width - 1, 20), initial_indent=indent,
            subsequent_indent=indent if hanging is None else hanging,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        for line in wrapped:
            self.line(Cell(line, style))

    def pairs(self, rows: Sequence[tuple[str, str | Cell]], *, indent: int = 2) -> None:
        """Write labels and values in two columns."""
        labels = max((len(label) for label, _ in rows), default=0)
        for label, value in rows:
            text, style = value if isinstance(value, Cell) else Cell(value)
            room = max(self.width - indent - labels - 3, 20)
            lines = textwrap.wrap(safe(text), room, break_on_hyphens=False) or [""]
            start = f"{'':{indent}}{label:<{labels}}  "
            for line in lines:
                self.write(f"{self.paint(start, 'label')}{self.paint(line, style)}".rstrip() + "\n")
                start = " " * len(start)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], *, indent: int = 2) -> None:
        """Write an aligned table. Rich shrinks the columns on a narrow terminal."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style=STYLES["label"], padding=(0, 3, 0, 0))
        for column in columns:
            table.add_column(Text(column.title), justify="right" if column.right else "left", overflow="fold")
        for row in rows:
            cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
            table.add_row(*(Text(safe(cell.text), style=STYLES.get(cell.style, "")) for cell in cells))
        with self._console.capture() as captured:
            self._console.print(Padding(table, (0, 0, 0, indent), expand=False))
        for line in captured.get().splitlines():
            self.write(line.rstrip() + "\n")

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def progress_bar(label: str, total_bytes: int) -> Iterator[Progress | None]:
    """Show a progress bar on standard error; yield None if it is not a terminal or the job is small."""
    if total_bytes < BAR_FROM_BYTES or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")), markup=False, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task(safe(label), total=total_bytes)
        yield lambda done_bytes: bars.advance(task, done_bytes)
