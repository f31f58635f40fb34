"""`python -m tests.damage`: run the matrix and write matrix.md; ``--all`` damages every field twice, and writes
nothing."""

from __future__ import annotations

import sys

from tests.damage.logs import FORMATS
from tests.damage.matrix import rows
from tests.damage.page import PAGE, page


def main() -> int:
    everything = "--all" in sys.argv
    found = {name: [*rows(name, False, everything), *rows(name, True, everything)] for name in FORMATS}
    broken = [row for group in found.values() for row in group if row.problems]
    for row in broken:
        print(row, *row.problems, sep="\n    ")
    print(f"{sum(map(len, found.values()))} cases, {len(broken)} broken promises")
    if not everything:
        PAGE.write_text(page(found), encoding="utf-8")
        print(f"{PAGE} written")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
