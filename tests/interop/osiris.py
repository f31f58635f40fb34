"""Duramen and Osiris itself, of any version: ``python -m tests.interop.osiris OSIRIS SESHAT GEN_BATCH_SERVER``.

The three arguments are checkouts of Osiris and of the two libraries that it needs; they are compiled with the `erlc`
of the distribution. Its log is then read and written without a broker, which is how a version newer than that of the
distribution's RabbitMQ is reached: logs after a repair, after a conversion of a compacted log, and with Bloom filters.
Exits with 1 on a mismatch.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import duramen

DRIVER = """#!/usr/bin/env escript
%%! -pa {ebin}
main([Dir, Command, Argument | Filter]) ->
    {{ok, _}} = application:ensure_all_started(seshat),
    logger:set_primary_config(level, error),
    application:load(osiris),
    osiris_counters:init(),
    Shared = osiris_log_shared:new(),
    Config = #{{dir => Dir, name => "stream", epoch => 2, reference => stream, external_ref => stream,
               shared => Shared, readers_counter_fun => fun(_) -> ok end, options => #{{}}, tracking_config => #{{}}}},
    Log = osiris_log:init(Config),
    Next = osiris_log:next_offset(Log),
    run(Command, list_to_integer(Argument), Filter, Log, Next, Shared, Config).

run("append", Count, [], Log, Next, _, _) ->
    Append = fun(I, L) -> osiris_log:write([<<"appended ", (integer_to_binary(I))/binary>>], L) end,
    Written = lists:foldl(Append, Log, lists:seq(1, Count)),
    io:format("~b ~b~n", [Next, osiris_log:next_offset(Written)]),
    osiris_log:close(Written);
run("read", First, Filter, Log, Next, Shared, Config) ->
    osiris_log:close(Log),
    osiris_log_shared:set_committed_chunk_id(Shared, Next - 1),
    osiris_log_shared:set_last_chunk_id(Shared, Next - 1),
    Options = case Filter of
        [] -> #{{}};
        [Value] -> #{{filter_spec => #{{filters => [list_to_binary(Value)], match_unfiltered => false}}}}
    end,
    {{ok, Reader}} = osiris_log:init_offset_reader(First, Config#{{options => Options}}),
    read(Reader).

read(Reader) ->
    case osiris_log:read_chunk_parsed(Reader) of
        {{end_of_stream, _}} -> ok;
        {{Records, Next}} ->
            [io:format("~b ~s~n", [Offset, binary:encode_hex(Data)]) || {{Offset, Data}} <- Records, is_binary(Data)],
            read(Next)
    end.
"""


@dataclass
class Osiris:
    """Osiris as compiled here; every call opens the log as a writer does at its start."""

    script: Path

    def read(self, root: Path, first: int = 0, *filters: str) -> list[tuple[int, bytes]]:
        lines = self._run(root, "read", str(first), *filters).splitlines()
        return [(int(line.split()[0]), bytes.fromhex([*line.split(), ""][1])) for line in lines]

    def append(self, root: Path, count: int) -> tuple[int, int]:
        before, after = self._run(root, "append", str(count)).split()
        return int(before), int(after)

    def _run(self, root: Path, *words: str) -> str:
        done = subprocess.run(["escript", self.script, root, *words], text=True, capture_output=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
        return done.stdout


def build(scratch: Path, osiris: Path, *libraries: Path) -> Osiris:
    ebin = scratch / "ebin"
    ebin.mkdir()
    for source in (*libraries, osiris):
        modules = sorted((source / "src").glob("*.erl"))
        command = ["erlc", "-pa", ebin, "-I", source, "-I", source / "src", "-o", ebin, *modules]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for app in (source / "src").glob("*.app.src"):
            (ebin / app.name.removesuffix(".src")).write_bytes(app.read_bytes())
    script = scratch / "driver.escript"
    script.write_text(DRIVER.format(ebin=ebin))
    return Osiris(script)


@dataclass
class Checks:
    failed: list[str] = field(default_factory=list)
    count: int = 0

    def same(self, what: str, got: object, expected: object) -> None:
        self.count += 1
        ok = got == expected
        print(f"{what:<80} {f'({len(got)})' if isinstance(got, list) else ''} {'ok' if ok else 'DIFFERS'}", flush=True)
        if not ok:
            self.failed.append(f"{what}: {str(got)[:300]} instead of {str(expected)[:300]}")


PROGRAM = {"format": "osiris", "dialect": "program"}


def ours(root: Path) -> list[tuple[int, bytes]]:
    with duramen.open(root) as log:
        return [(record.offset, record.value) for record in log.scan()]


def to_and_fro(name: str, osiris: Osiris, root: Path, checks: Checks) -> None:
    """Osiris reads what Duramen reads, appends after it; Duramen reads that, appends; Osiris reads again."""
    expected = ours(root)
    with duramen.open(root) as log:
        following = log.next_offset
    checks.same(f"{name}: read by Osiris", osiris.read(root), expected)
    for first in (expected[0][0] + 1, following // 2, expected[-1][0]):
        wanted = [row for row in expected if row[0] >= first]
        got = [row for row in osiris.read(root, first) if row[0] >= first]
        checks.same(f"{name}: read by Osiris from {first} on", got, wanted)
    checks.same(f"{name}: appended by Osiris", osiris.append(root, 3), (following, following + 3))
    expected += [(following + number, b"appended %d" % (number + 1)) for number in range(3)]
    checks.same(f"{name}: read by Duramen after it", ours(root), expected)
    found = [finding.code for finding in duramen.verify(root).findings if finding.code != "sealed-continued"]
    checks.same(f"{name}: verified by Duramen", found, [])
    with duramen.open(root, "a") as log:
        expected.append((log.append(b"ours again"), b"ours again"))
    checks.same(f"{name}: read by Osiris at the end", osiris.read(root), expected)


def repaired(osiris: Osiris, scratch: Path, dice: random.Random, checks: Checks) -> None:
    """Damaged chunks: in the middle, and the last one."""
    root = scratch / "repaired"
    with duramen.open(root, "a", **PROGRAM) as log:
        for number in range(60):
            log.append_batch([b"record %d of %d" % (part, number) for part in range(dice.randrange(1, 9))])
    path = root / f"{0:020}.segment"
    data = bytearray(path.read_bytes())
    for number in (11, 12, 30, 59):
        data[data.index(b"record 0 of %d" % number)] ^= 1
    path.write_bytes(data)
    duramen.repair(root, plan_only=False)
    to_and_fro("repaired", osiris, root, checks)


def compacted(osiris: Osiris, scratch: Path, checks: Checks) -> None:
    source, root = scratch / "keratin", scratch / "compacted"
    with duramen.open(source, "a", format="keratin", segment_max_bytes=4096) as log:
        for number in range(1000):
            log.append(b"record %d" % number, key=b"rare %d" % number if number % 97 == 0 else b"k%d" % (number % 11))
        log.seal()
        log.compact()
    duramen.convert(source, root, "osiris", allow_loss=["key"], dialect="program")
    to_and_fro("compacted", osiris, root, checks)


def filtered(osiris: Osiris, scratch: Path, dice: random.Random, checks: Checks) -> None:
    """A reader with a filter gets every chunk that holds its value, and few others; never one without a filter."""
    for filter_bytes in (16, 64, 255):
        root, chunks = scratch / f"filtered-{filter_bytes}", list[list[bytes]]()
        with duramen.open(root, "a", **PROGRAM, filter_bytes=filter_bytes, filter_by="delimiter:/") as log:
            for number in range(200):
                chunks.append([b"region-%d/%d" % (dice.randrange(40), number) for _ in range(dice.randrange(1, 3))])
                if number % 10 == 0:
                    chunks[-1] = [b"without a value"]
                log.append_batch(chunks[-1])
        for region in (b"region-0", b"region-17", b"nowhere"):
            got = {value for _, value in osiris.read(root, 0, region.decode())}
            wanted = {value for values in chunks for value in values if value.startswith(region + b"/")}
            name = f"filtered, {filter_bytes} bytes: {region.decode()}"
            checks.same(f"{name}: nothing is missed of {len(wanted)}", wanted - got, set())
            checks.same(f"{name}: chunks without a filter are skipped", b"without a value" in got, False)
            checks.same(f"{name}: most others are skipped ({len(got)} read)", len(got) < 60, True)
        to_and_fro(f"filtered, {filter_bytes} bytes", osiris, root, checks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("osiris", "seshat", "gen_batch_server"):
        parser.add_argument(name, type=Path, help=f"a checkout of {name}")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the records' contents")
    arguments = parser.parse_args()
    checks, dice = Checks(), random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="duramen-osiris-") as directory:
        scratch = Path(directory)
        print(f"Duramen {duramen.__version__}, seed {arguments.seed}", flush=True)
        osiris = build(scratch, arguments.osiris, arguments.gen_batch_server, arguments.seshat)
        repaired(osiris, scratch, dice, checks)
        compacted(osiris, scratch, checks)
        filtered(osiris, scratch, dice, checks)
    print(f"--- {checks.count} checks, {len(checks.failed)} failed", *checks.failed, sep="\n")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
