"""Duramen and the Rust programs of two formats, on the same files: Keratin (`keratin-log`) and RustLog (`kafka-lite`).

``python -m tests.interop.rust keratin SOURCE`` and ``… rustlog SOURCE``: SOURCE is a checkout of the program, which is
built with cargo into a scratch directory together with a driver of a few lines. Records go to and fro: the program
writes a log and Duramen continues it, Duramen makes one with ``dialect="program"`` and the program reads and continues
it, and so on in turn. Every record is compared. Exits with 1 on a mismatch.

RustLog's program starts to count at the base again whenever it opens a segment. So it continues no log here; it reads.
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

KERATIN = """
use keratin_log::*;
use std::io::BufRead;

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let config = KeratinConfig { segment_max_bytes: 8192, index_stride_bytes: 512, ..KeratinConfig::test_default() };
    let log = Keratin::open(&words[2], config).await.expect("open");
    if words[1] == "append" {
        for line in std::io::stdin().lock().lines() {
            let payload = unhex(&line.unwrap());
            let message = Message { flags: 0, headers: vec![], payload };
            let done = log.append(message, Some(KDurability::AfterFsync)).await.expect("append");
            println!("{}", done.base_offset);
        }
        return;
    }
    let from: u64 = words[3].parse().unwrap();
    for record in log.reader().scan_from(from, 1_000_000).expect("scan") {
        println!("{} {}", record.offset, hex(&record.payload));
    }
}
"""

RUSTLOG = """
use kafka_lite::storage::{index::Index, segment::Segment};
use std::io::BufRead;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let base: u64 = words[3].parse().unwrap();
    let path = std::path::Path::new(&words[2]).join(format!("{base:020}"));
    let mut segment = Segment::open(path.with_extension("log"), base).expect("open");
    let mut index = Index::open(path.with_extension("index"), base).expect("index");
    if words[1] == "append" {
        for (number, line) in std::io::stdin().lock().lines().enumerate() {
            if number % 100 == 0 {
                index.append(segment.next_offset(), segment.size()).expect("index");
            }
            println!("{}", segment.append(&unhex(&line.unwrap())).expect("append"));
        }
        return;
    }
    segment.seal().expect("seal");
    let from: u64 = words[4].parse().unwrap();
    for record in segment.read_from_offset(&mut index, from, usize::MAX).expect("read").records {
        println!("{} {}", record.offset, hex(&record.payload));
    }
}
"""

HEX = """
fn hex(data: &[u8]) -> String {
    if data.is_empty() { "-".into() } else { data.iter().map(|byte| format!("{byte:02x}")).collect() }
}

#[allow(dead_code)]
fn unhex(text: &str) -> Vec<u8> {
    if text == "-" { return vec![]; }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
"""

CARGO = """
[package]
name = "driver"
version = "0.0.0"
edition = "2021"

[dependencies]
{crate} = {{ path = "{path}" }}
tokio = {{ version = "1", features = ["full"] }}

[workspace]
"""


@dataclass
class Driver:
    """The real program, behind a process of its own for each call."""

    binary: Path

    def append(self, root: Path, values: list[bytes], *words: str) -> list[int]:
        given = "".join(f"{value.hex() or '-'}\n" for value in values)
        return [int(line) for line in self._run("append", str(root), *words, given=given).splitlines()]

    def scan(self, root: Path, *words: str) -> list[tuple[int, bytes]]:
        lines = (line.split() for line in self._run("scan", str(root), *words).splitlines())
        return [(int(offset), b"" if value == "-" else bytes.fromhex(value)) for offset, value in lines]

    def _run(self, *words: str, given: str = "") -> str:
        done = subprocess.run([self.binary, *words], input=given, text=True, capture_output=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout


def build(scratch: Path, crate: str, path: Path, code: str) -> Driver:
    root = scratch / "driver"
    (root / "src").mkdir(parents=True)
    (root / "Cargo.toml").write_text(CARGO.format(crate=crate, path=path.resolve()))
    (root / "src/main.rs").write_text(code + HEX)
    subprocess.run(["cargo", "build", "-q"], cwd=root, check=True, stderr=subprocess.DEVNULL)
    return Driver(root / "target/debug/driver")


@dataclass
class Checks:
    failed: list[str] = field(default_factory=list)
    count: int = 0

    def same(self, what: str, got: object, expected: object) -> None:
        self.count += 1
        ok = got == expected
        size = f" ({len(got)})" if isinstance(got, list) else ""
        print(f"{what:<90}{size} {'ok' if ok else 'DIFFERS'}", flush=True)
        if not ok:
            self.failed.append(f"{what}: {str(got)[:300]} instead of {str(expected)[:300]}")


def ours(root: Path) -> list[tuple[int, bytes]]:
    with duramen.open(root) as log:
        return [(record.offset, record.value) for record in log.scan()]


def sound(root: Path) -> list[str]:
    """What is damaged. Indexes may lack entries: the program has no time index, and holds back entries of the other."""
    found = [finding for finding in duramen.verify(root).findings if "index" not in finding.code]
    return [f"{finding.code} {finding.message}" for finding in found]


def keratin(driver: Driver, scratch: Path, dice: random.Random, checks: Checks) -> None:
    """Both begin a log; both append to each in turn, over several segments."""
    for name, begins in (("theirs", "program"), ("ours", "duramen")):
        root, expected = scratch / name, list[tuple[int, bytes]]()
        for turn in range(6):
            values = [dice.randbytes(dice.choice((0, 1, 40, 700))) for _ in range(60)]
            by_program = (turn % 2 == 0) == (begins == "program")
            if by_program:
                offsets = driver.append(root, values)
            else:
                options = {"format": "keratin", "dialect": "program"} if not root.exists() else {}
                with duramen.open(root, "a", segment_max_bytes=8192, **options) as log:
                    offsets = [log.append(value) for value in values]
            expected += zip(offsets, values, strict=True)
            who = f"{name}, turn {turn}, appended by {'the program' if by_program else 'Duramen'}"
            checks.same(f"{who}: offsets", offsets, list(range(turn * 60, turn * 60 + 60)))
            checks.same(f"{who}: read by Duramen", ours(root), expected)
            checks.same(f"{who}: verified by Duramen", sound(root), [])
            checks.same(f"{who}: read by the program", driver.scan(root, "0"), expected)
            middle = dice.randrange(len(expected))
            checks.same(f"{who}: read by the program from {middle}", driver.scan(root, str(middle)), expected[middle:])
            checks.same(f"{who}: the manifest's size", (root / "manifest.bin").stat().st_size, 68)


def rustlog(driver: Driver, scratch: Path, dice: random.Random, checks: Checks) -> None:
    """The program writes and Duramen goes on; Duramen begins and the program reads."""
    for name in ("theirs", "ours"):
        root, expected = scratch / name, list[tuple[int, bytes]]()
        if name == "theirs":
            root.mkdir()
            values = [b"first"] + [dice.randbytes(dice.randrange(60)) for _ in range(349)]
            expected += zip(driver.append(root, values, "0"), values, strict=True)
            checks.same(f"{name}: written by the program, read by Duramen", ours(root), expected)
        options = {"format": "rustlog", "dialect": "program"} if name == "ours" else {}
        with duramen.open(root, "a", **options) as log:
            for value in [b"our first", *(dice.randbytes(dice.randrange(60)) for _ in range(300))]:
                expected.append((log.append(value), value))
        checks.same(f"{name}: verified by Duramen", sound(root), [])
        checks.same(f"{name}: read by Duramen", ours(root), expected)
        checks.same(f"{name}: read by the program", driver.scan(root, "0", "0"), expected)
        for start in (1, 99, 100, 101, 250, len(expected) - 1):
            checks.same(
                f"{name}: read by the program from {start}", driver.scan(root, "0", str(start)), expected[start:]
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=["keratin", "rustlog"])
    parser.add_argument("source", type=Path, help="a checkout of the program")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the records' contents")
    arguments = parser.parse_args()
    checks, dice = Checks(), random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="duramen-rust-") as directory:
        scratch = Path(directory)
        print(f"Duramen {duramen.__version__}, seed {arguments.seed}", flush=True)
        if arguments.program == "keratin":
            keratin(build(scratch, "keratin-log", arguments.source / "keratin-log", KERATIN), scratch, dice, checks)
        else:
            rustlog(build(scratch, "kafka-lite", arguments.source, RUSTLOG), scratch, dice, checks)
    print(f"--- {checks.count} checks, {len(checks.failed)} failed", *checks.failed, sep="\n")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
