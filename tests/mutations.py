"""Break the engine on purpose, one step at a time, and see whether `make test` notices.

``python -m tests.mutations`` applies one mutation after another to a copy of `src/`, runs the tests that it names, and
prints which were caught. ``--only NAME`` runs one, ``--list`` prints them, ``--thorough`` runs the same tests in
full (``THOROUGH=1``). Exit status 1: a mutation was missed or does not apply any more.

A mutation names a package, a function in it, a piece of its source and what replaces it; no piece means the whole body.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from duramen import kernel

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/duramen")
TIMEOUT_S = 900
ISOLATE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
"""
"""A `sitecustomize` that takes away the hook of an editable install, so that `PYTHONPATH` decides."""


class Mutation(NamedTuple):
    name: str
    package: str
    function: str
    old: str
    new: str
    tests: str
    """Arguments of pytest."""

    @property
    def area(self) -> str:
        return self.name.partition(": ")[0]


def crashes(*cases: str) -> str:
    """Cases of the crash explorer: format and workload."""
    return " ".join(f"tests/torture/test_crash_explorer.py::test_every_crash_is_survived[{case}:1]" for case in cases)


FAULTS = " ".join(f"tests/torture/test_faults.py::{name}" for name in (
    "test_nothing_is_acknowledged_after_a_failed_sync[durable-log-lost]", "test_a_write_is_short[durable-log]",
    "test_one_call_fails[durable-log-ENOSPC]", "test_a_poisoned_log_says_so",
))  # fmt: skip
TRANSACTIONS = "tests/log/write/test_transaction.py tests/torture/test_transactions.py"
LIFE = "tests/log/maintain/test_retention.py tests/log/maintain/test_compact.py tests/torture/test_life.py"
REOPENED = "tests/log/recover/test_cuts.py tests/log/recover/test_recovery.py"
RECOVERED = f"{REOPENED} {crashes('durable-log:crashes', 'keratin:crashes')}"
BATCHES = f"tests/log/write/test_segments.py tests/log/write/test_writable_log.py {crashes('durable-log:batches')}"
CUT = f"tests/log/recover {crashes('osiris:mixed', 'rustlog:crashes', 'fixed-slot:crashes')} tests/log/write"
STARTED = f"tests/log/recover {crashes('osiris:rolls', 'keratin:rolls')} tests/torture/test_regressions.py"
HALVES = f"{crashes('durable-log:mixed', 'rustlog:mixed')} tests/log/read tests/log/test_regressions.py"
REPAIR = "tests/log/repair tests/damage/test_files.py tests/damage/test_matrix.py"
VERIFY = "tests/log/verify/test_verify.py tests/log/segments/test_witness.py tests/damage/test_matrix.py"
MACHINE = "tests/consumers/test_state_machine.py tests/consumers/test_group.py"
GROUPS = "tests/torture/test_consumers.py tests/consumers"
SINK = "tests/spark/sink"

INTERVALS = f"tests/log/write/test_timer.py {crashes('durable-log:intervals', 'keratin:intervals')}"

MUTATIONS = [
    # --- on time
    Mutation("interval: no append completes it", "log/write", "IntervalSync.is_completed_by", "", "return False",
             INTERVALS),
    Mutation("interval: the timer syncs nothing", "log/write", "WritableLog._do_due", "self._do_sync()", "pass",
             INTERVALS),
    Mutation("interval: an idle segment grows old", "log/write", "WritableLog._do_due", "self.tail.roll_if_old()", "",
             "tests/log/write/test_timer.py"),
    Mutation("indexes: sizes are not compared", "log/recover", "_has_wrong_index", "", "return not files.derived",
             "tests/log/recover/test_sealed_index.py"),
    Mutation("indexes: a reader follows any", "log/read", "Log._is_sealed_index", "", "return True",
             "tests/log/recover/test_sealed_index.py"),
    # --- recovery
    Mutation("recovery: names are not synced", "log/recover", "Recovery.settle", "", "return",
             f"tests/torture/test_regressions.py {crashes('durable-log:kills', 'osiris:kills', 'keratin:kills')}"),
    Mutation("recovery: kept bytes are not written again", "log/recover", "Recovery._write_again", "", "return",
             crashes("durable-log:kills", "rustlog:kills", "osiris:kills", "keratin:kills")),
    Mutation("recovery: cut bytes are not copied aside", "log/recover", "Recovery.keep",
             "self._sidecar.quarantine(", "str(", RECOVERED),
    Mutation("recovery: a torn tail is not cut", "log/recover", "Recovery._continue",
             "file.truncate(cursor.position)", "pass", CUT),
    Mutation("recovery: a wrong index stays", "log/recover", "Recovery.rebuild_indexes",
             "if index.is_right:", "if index.data is not None:", RECOVERED),
    Mutation("recovery: a wrong index is not copied aside", "log/recover", "Recovery.rebuild_indexes",
             "self._sidecar.quarantine(", "str(",
             "tests/log/recover/test_derived_copies.py tests/log/recover tests/log/verify"),
    Mutation("recovery: a recreated segment is not copied aside", "log/recover", "Recovery.recreate_segment",
             "self._sidecar.quarantine(", "str(", f"{REOPENED} {STARTED}"),
    Mutation("recovery: the digest forgets the bytes before the watermark", "log/recover", "_digest",
             "mark.durable_crc32c", "0", RECOVERED),
    # --- commit
    Mutation("commit: an append is not synced", "log/write", "Appender.sync", "self.active.sync()", "pass",
             crashes("fixed-slot:singles")),
    Mutation("commit: a failed sync does not poison", "log/write", "Appender.sync", "self.poison(error)", "pass",
             FAULTS),
    Mutation("commit: the watermark is not synced where it is the proof", "log/write", "Appender._must_prove", "",
             "return False", crashes("rustlog:singles", "rustlog:mixed")),
    Mutation("commit: readers see half a batch", "log/write", "Appender.mark",
             "next_offset=self.visible.next_offset", "", HALVES),
    Mutation("commit: a sealed segment is not listed", "log/write", "Appender.roll",
             "self.sidecar.add_sealed(sealed)", "pass",
             "tests/log/write/test_segments.py tests/sidecar tests/log/segments"),
    Mutation("commit: a failed write stays in the file", "log/write", "Appender._undo", "self.active.cut_back()",
             "pass", "tests/log/write/test_refusals.py tests/torture/test_faults.py"),
    Mutation("commit: a follower hears of no error", "log/write", "_fail", "request.error = error",
             "request.result = True", "tests/log/write/test_group_commit.py"),
    Mutation("commit: requests that want to be alone are not", "log/write", "GroupCommit._take",
             "request.alone or group[0].alone", "False", "tests/log/write/test_group_commit.py tests/log/write"),
    Mutation("commit: a new segment's name is not synced", "log/segments", "ActiveSegment.create",
             "disk.sync_directory(directory)", "pass", crashes("durable-log:rolls")),
    # --- transactions
    Mutation("transactions: rows are visible before the commit", "log/write", "HiddenRows.store", "tail.begin_hidden()",
             "pass", TRANSACTIONS),
    Mutation("transactions: no marker is written before the rows", "log/write", "HiddenRows.store",
             "write_tx_marker(log.disk, log.path, self._pending)\n        tail.begin_hidden()", "tail.begin_hidden()",
             TRANSACTIONS),
    Mutation("transactions: a committed watermark is not restored", "log/recover", "_publish",
             "sidecar.mark(after, durable=True)", "pass", TRANSACTIONS),
    Mutation("transactions: rolled back rows stay in the file", "log/recover", "_roll_back",
             "file.truncate(before.position)", "pass", TRANSACTIONS),
    Mutation("transactions: rolled back segments stay", "log/recover", "_roll_back",
             "files.base > before.base", "files.base > before.base + 10**9", TRANSACTIONS),
    Mutation("transactions: the manifest names rolled back segments", "log/recover", "_restore_manifest", "",
             "return", TRANSACTIONS),
    Mutation("transactions: a batch that is sent again is stored twice", "sidecar", "LedgerEntry.repeats",
             "self.batch >= key.batch", "self.batch > key.batch", TRANSACTIONS),
    Mutation("transactions: the marker may come back", "sidecar", "remove_tx_marker",
             "disk.sync_directory(sidecar_path(root))", "pass", TRANSACTIONS),
    Mutation("transactions: an unfinished one of several logs is left", "log/write", "_resolve_unfinished", "",
             "return", TRANSACTIONS),
    Mutation("transactions: a replaced log keeps its consumers' positions", "log/recover", "_forget_positions", "",
             "return", f"{TRANSACTIONS} tests/consumers"),
    # --- retention and compaction
    Mutation("maintenance: retention does not check what it removes", "log/maintain", "plan_segments",
             "if not found:", "if True:", LIFE),
    Mutation("maintenance: a damaged segment is removed without a copy", "log/maintain", "_remove",
             "if segment.damage:", "if False:", LIFE),
    Mutation("maintenance: a file swap is executed before it is durable", "sidecar", "commit_file_swap",
             "disk.sync_directory(posixpath.dirname(_journal(root)))", "pass", LIFE),
    Mutation("maintenance: swapped out files stay", "sidecar", "_execute",
             "for path in change.removals:", "for path in ():", LIFE),
    # --- repair
    Mutation("repair: nothing is copied before a change", "log/repair", "Application._entry",
             "self._write_new(saved, [data])", "self._write_new(saved, [])", REPAIR),
    Mutation("repair: files are renamed in the order of the plan", "log/repair", "in_order",
             "return sorted(steps, key=lambda step: order[step.action])", "return list(steps)", REPAIR),
    Mutation("repair: a finished repair looks unfinished", "log/repair", "Application.run",
             "self._journal.state = RepairState.DONE", "pass", REPAIR),
    Mutation("repair: an earlier journal is lost", "log/repair", "Application.rollback",
             "write_repair_journal(self._disk, self._root, self._before)", "pass", REPAIR),
    Mutation("repair: a rename replaces a file that has the name", "log/repair", "Application._name",
             "self._disk.rename_new(", "self._disk.replace(", REPAIR),
    # --- verify
    Mutation("verify: missing offsets are not reported", "log/verify", "SegmentVerifier._check_gaps", "", "return",
             VERIFY),
    Mutation("verify: the digest of a sealed segment is not compared", "log/verify", "SidecarEvidence.of_sealed",
             "found = judge_seal(sealed, data, digest)", "found = None", VERIFY),
    Mutation("verify: the watermark is not compared", "log/verify", "SidecarEvidence.of_watermark",
             "if against is not None", "if False", f"{VERIFY} tests/damage/test_flips.py"),
    Mutation("verify: a renamed segment passes", "log/verify", "SegmentVerifier._check_name", "", "return", VERIFY),
    # --- consumers
    Mutation("groups: a lease that a reset ended may be acknowledged", "consumers/groups", "_objection",
             "lease.deadline_ms == REVOKED_MS", "False", MACHINE),
    Mutation("groups: a second delivery has the number of the first", "consumers/groups", "StateMachine.take_expired",
             "min(epoch + 1, MAX_EPOCH)", "epoch", MACHINE),
    Mutation("groups: an ack covers the offsets before it", "consumers/groups", "StateMachine.ack",
             "self._is_done(until, start)", "True", MACHINE),
    Mutation("groups: acks after a gap are lost on a rewind", "consumers/groups", "StateMachine.rewind",
             "self.acked.within(0, next_offset)", "()", MACHINE),
    Mutation("groups: acks are not synced", "consumers/groups", "GroupStore.sync", "ticket.file.sync()", "pass",
             GROUPS),
    Mutation("groups: a new snapshot's name is not synced", "consumers/groups", "GroupStore._replace",
             "self._disk.sync_directory(posixpath.dirname(path))", "pass", GROUPS),
    Mutation("groups: an older cursor wins", "consumers", "_is_newer", "line.tracked == tracked", "True",
             "tests/consumers/test_tracking.py tests/consumers/test_cursors.py"),
    Mutation("groups: dead letters are not synced", "consumers/groups", "DeadLetters.move", 'durability="fsync"',
             'durability="write"', GROUPS),
    # --- formats
    Mutation("formats: the manifest's checksum is not compared", "formats/keratin", "_check_header",
             'header["crc32c"] != ', 'False and header["crc32c"] != ', "tests/formats/keratin"),
    Mutation("formats: chunks have no checksum", "formats/osiris", "encode_chunk", "crc=kernel.crc32(data)", "crc=0",
             "tests/formats/osiris"),
    Mutation("formats: a checkpoint may have any size", "formats", "Checkpoint.parse",
             "len(memoryview(buf)) > CHECKPOINT_BYTES", "False", "tests/formats tests/security"),
    # --- sink
    Mutation("sink: another query's name for every batch", "spark/sink", "StreamWriter.commit",
             'f"{QUERY}{stored[0].writer}"', 'f"{QUERY}{new_attempt()}"', SINK),
    Mutation("sink: staged bytes are not compared", "spark/sink", "Staging.map",
             "or crc32c(data) != file.crc32c", "", SINK),
    Mutation("sink: a task without an answer is ignored", "spark/sink", "_all",
             "if len(stored) < len(messages):", "if False:", SINK),
    Mutation("sink: staged files are left", "spark/sink", "Staging.sweep", "self.remove()", "pass", SINK),
]  # fmt: skip


class StaleMutationError(Exception):
    """The source that a mutation replaces does not exist, or exists twice."""


def find_function(package: Path, name: str) -> tuple[Path, ast.FunctionDef]:
    """The one function or method of that name in the modules of a package."""
    *classes, function = name.split(".")
    found = []
    for path in sorted(package.glob("*.py")):
        body: Iterable[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
        for wanted in classes:
            body = [
                inner for node in body if isinstance(node, ast.ClassDef) and node.name == wanted for inner in node.body
            ]
        found += [(path, node) for node in body if isinstance(node, ast.FunctionDef) and node.name == function]
    if len(found) != 1:
        raise StaleMutationError(f"{len(found)} functions are called {name}")
    return found[0]


def mutated(source: Path, mutation: Mutation) -> tuple[Path, str]:
    """The file that a mutation changes below ``source``, and its new text."""
    path, function = find_function(source / PACKAGE / mutation.package, mutation.function)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert function.end_lineno is not None
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    start = body[0].lineno - 1
    old = "".join(lines[start : function.end_lineno])
    if mutation.old == "":
        new = textwrap.indent(mutation.new + "\n", " " * (function.col_offset + 4))
    elif old.count(mutation.old) == 1:
        new = old.replace(mutation.old, mutation.new)
    else:
        raise StaleMutationError(f"{mutation.function} has {mutation.old!r} {old.count(mutation.old)} times")
    text = "".join([*lines[:start], new, *lines[function.end_lineno :]])
    compile(text, str(path), "exec")
    return path, text


def copy_source(target: Path) -> None:
    """A copy of `src/` that can be imported: with the compiled kernel, and without the editable install."""
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for compiled in Path(kernel._crc.__file__).parent.glob("*.so"):
        shutil.copy(compiled, target / PACKAGE / "kernel")
    (target / "sitecustomize.py").write_text(ISOLATE)


def run_tests(target: Path, tests: Sequence[str], *, thorough: bool) -> str | None:
    """The first test that fails on the copied source; None where all pass."""
    path = os.pathsep.join((str(target), str(target / "src")))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "THOROUGH": "1" if thorough else "",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        *tests,
    ]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed:
        raise RuntimeError(f"pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed_test(failed[0])


def failed_test(line: str) -> str:
    """The test that a line of pytest's summary names; its parameters may contain spaces."""
    return line.partition(" ")[2].partition(" - ")[0]


def run(mutation: Mutation, *, thorough: bool = False) -> bool:
    """Apply a mutation and run its tests; print and return whether it was caught."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        target = Path(directory)
        copy_source(target)
        try:
            path, text = mutated(target, mutation)
        except StaleMutationError as error:
            print(f"stale   {mutation.name}: {error}", flush=True)
            return False
        original = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        caught = run_tests(target, mutation.tests.split(), thorough=thorough)
        path.write_text(original, encoding="utf-8")
        if caught is not None and caught.startswith("tests/") and run_tests(target, [caught], thorough=thorough):
            print(f"BROKEN  {mutation.name}: {caught} fails without it", flush=True)
            return False
    seconds = time.monotonic() - began
    print(f"{'MISSED ' if caught is None else 'caught '} {mutation.name} ({seconds:.0f} s): {caught}", flush=True)
    return caught is not None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="mutations whose name holds this; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the mutations, run none")
    parser.add_argument("--thorough", action="store_true", help="run the tests with THOROUGH=1")
    given = parser.parse_args(arguments)
    chosen = [one for one in MUTATIONS if not given.only or any(part in one.name for part in given.only)]
    if given.list:
        print("\n".join(one.name for one in chosen))
        return 0
    caught = sum(run(one, thorough=given.thorough) for one in chosen)
    print(f"{caught} of {len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
