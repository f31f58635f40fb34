"""The matrix as a page, `matrix.md`: one line per kind of damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.damage.matrix import Row

PAGE = Path(__file__).parent / "matrix.md"

HEAD = """# Damage: what is found, what is done, what is kept

Each row is one kind of damage to a single place of a log: what `duramen verify` reports, what `duramen repair` plans,
and what remains after `duramen repair --apply`. `python -m tests.damage` generates this page: it damages small logs of
every format (21 records or more, in 3 segments or more) in each field that `duramen dump` shows, and in every file. The
tests in this directory run the same cases and fail if a promise is broken or this page is out of date.

In every case: verify terminates and reports; repair leaves a log that verify calls sound; a record appended afterwards
reads back under an offset that no other record ever had; every untouched record still exists, and no record that was
never written; `duramen repair --undo` restores every file byte for byte. The last two columns count what no checksum
covers and nothing else contradicts.

- **cases**: how many places were damaged.
- **verify says**: the codes of its findings, the most frequent first; *exit* is 1 if any of them is damage.
- **repair does**: its steps. Everything it changes is in the quarantine first. Steps on the sidecar are left out.
- **kept**: of all records of the log, in the worst case. A flipped bit in a record's header is corrected where the
  checksum proves it. A record with a damaged payload is lost; in Osiris, the whole chunk.
- **unseen**: cases in which nothing was noticed, and nothing had to be repaired to read the log.
- **altered**: cases after which a record reads differently from what was written, or has another record's offset,
  because nothing in the log can tell. Most are RustLog's, which has no checksum.

"Without sidecar" is a log of another program. "With sidecar" is a log that Duramen wrote: it has the digests of sealed
segments and the durable watermark.
"""


def section(name: str, rows: Sequence[Row]) -> str:
    """The part of the page about one format."""
    parts = [f"## {name}\n"]
    for sidecar in (False, True):
        chosen = [row for row in rows if row.base.sidecar == sidecar]
        parts.append(f"### {name}, {'with' if sidecar else 'without'} sidecar\n")
        parts.append(_table(chosen))
    return "\n".join(parts)


def _table(rows: Iterable[Row]) -> str:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.damage.kind, []).append(row)
    lines = [
        "| damage | cases | verify says | exit | repair does | kept | unseen | altered |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(kind, group) for kind, group in groups.items()),
    ]
    return "\n".join(lines) + "\n"


def _line(kind: str, rows: list[Row]) -> str:
    exits = sorted({row.exit_code for row in rows})
    total = rows[0].expected
    worst = max(row.lost for row in rows)
    kept = "all" if not worst else f"{total - worst} of {total}"
    unseen = sum(not row.noticed for row in rows)
    altered = sum(row.changed > 0 for row in rows)
    cells = [
        kind, str(len(rows)), _most(code for row in rows for code in row.codes),
        " or ".join(map(str, exits)), _most(a for row in rows for a in row.actions if a != "rebuild sidecar"),
        kept, str(unseen or "–"), str(altered or "–"),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _most(words: Iterable[str]) -> str:
    """The words by how often they come, the same order every time."""
    counted = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(word for word, _ in counted) or "–"


def sections(text: str) -> dict[str, str]:
    """The parts of a page by format."""
    parts = text.split("\n## ")
    return {part.split("\n", 1)[0]: "## " + part.rstrip() + "\n" for part in parts[1:]}


def page(by_format: dict[str, Sequence[Row]]) -> str:
    return HEAD + "\n" + "\n".join(section(name, rows) for name, rows in by_format.items())
