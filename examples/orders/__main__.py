"""``python -m examples.orders --gb 0.2 --kills 5``: see the package."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

from examples.orders.check import check
from examples.orders.generate import generate
from examples.orders.run import run

BATCHES = 20
"""About so many micro-batches; more if there are more kills."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description="Orders, exactly once.")
    parser.add_argument("--gb", type=float, default=0.2, help="size of all logs together (default 0.2)")
    parser.add_argument("--kills", type=int, default=5, help="how often the driver is killed (default 5)")
    parser.add_argument(
        "--formats", default="keratin,osiris,kafka", help="a log of each (default keratin,osiris,kafka)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where; must not exist (default: removed at the end)")
    arguments = parser.parse_args()
    formats = arguments.formats.split(",")
    directory = (arguments.directory or Path(tempfile.mkdtemp(prefix="orders-")) / "run").absolute()
    directory.mkdir(parents=True)
    records = generate(directory, int(arguments.gb * 1e9), formats, arguments.seed)
    print(f"{records:,} records in {len(formats)} logs ({', '.join(formats)})", flush=True)
    size = max(int(arguments.gb * 1e9) // len(formats) // max(BATCHES, 2 * arguments.kills), 1 << 16)
    (directory / "job.json").write_text(json.dumps({"formats": formats, "options": {"maxBytesPerTrigger": str(size)}}))
    begin = time.monotonic()
    outcome = run(directory, arguments.kills, arguments.seed)
    seconds = time.monotonic() - begin
    rows = check(directory, formats)
    print(f"equal to duckdb: {', '.join(f'{count:,} rows in {name}' for name, count in rows.items())}")
    print(f"{outcome.runs} runs, {len(outcome.kills)} kills, {seconds:.0f} s by the wall, {outcome.cpu_s:.0f} s of CPU")
    for kind, resident in outcome.peak_bytes.items():
        print(f"peak memory of a {kind}: {resident >> 20} MiB, {outcome.own_bytes[kind] >> 20} of them its own")
    if arguments.directory is None:
        shutil.rmtree(directory.parent)


if __name__ == "__main__":
    main()
