"""What all verbs share: their usage lines, and how the program ends when it is at fault itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duramen import __version__
from duramen.cli.log import info
from duramen.cli.signals import Interrupted
from tests.cli.running import Logs, Run

USAGES = {
    "create": "PATH",
    "append": "PATH [FILE]",
    "info": "PATH",
    "cat": "PATH",
    "dump": "FILE",
    "verify": "PATH…",
    "repair": "PATH",
    "reindex": "PATH",
    "seal": "PATH",
    "convert": "SRC DST",
    "copy": "SRC DST",
    "topic": "ROOT [ACTION] [NAME]",
    "group": "PATH [NAME|list] [ACTION] [TO|OFFSET…|DEAD]",
    "cursor": "PATH [NAME|list] [ACTION] [OFFSET]",
    "lag": "PATH…",
    "retain": "PATH",
    "compact": "PATH",
    "top": "PATH…",
    "serve": "[PATH…]",
    "demo": "",
    "pipeline verify": "PATH",
    "pipeline profile": "PATH",
    "pipeline export": "PATH TARGET",
    "pipeline convert": "SRC DST",
    "pipeline compact": "SRC DST",
    "pipeline ingest": "LOG [PATH]",
    "pipeline replay": "SRC DST",
    "pipeline run": "FILE",
}


def verbs(call: Run, *group: str) -> list[str]:
    """The verbs that ``--help`` lists."""
    listed = call(*group, "--help").text.partition("Commands:\n")[2].partition("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "]


def test_usage_lines(call: Run) -> None:
    there = {verb for verb in verbs(call) if verb != "pipeline"} | {
        f"pipeline {verb}" for verb in verbs(call, "pipeline")
    }
    assert there == set(USAGES)
    for verb, arguments in USAGES.items():
        text = call(*verb.split(), "--help").text
        assert text.splitlines()[0] == f"Usage: duramen {verb} [OPTIONS] {arguments}".rstrip()
        assert "[[" not in text
        assert "{" not in text.partition("Options:")[0]


@pytest.mark.parametrize("words", [("append",), ("cursor",), ("group",), ("topic",), ("lag",), ("pipeline", "ingest")])
def test_an_argument_that_is_missing_is_named(call: Run, words: tuple[str, ...]) -> None:
    missing = call(*words)
    first = USAGES[" ".join(words)].split()[0]
    assert missing.fails(2, f"missing argument '{first}'", f"`duramen {' '.join(words)} --help`")


def failing(error: BaseException) -> Any:
    def run(*_: Any, **__: Any) -> int:
        sys.stdout.write("so far\n")
        raise error

    return run


def test_a_bug_is_not_taken_for_damage(call: Run, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "run", failing(KeyError("a \x1b[31m name")))
    done = call("info", logs.copy("keratin"))
    assert (done.code, done.text) == (70, "so far\n")
    lines = done.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any("test_main.py" in line for line in lines)
    assert lines[-2].startswith(f"duramen: this is a bug in duramen {__version__}, not a problem of the log: KeyError")
    assert "report it" in lines[-1]
    assert "\x1b" not in done.err


def test_other_ends_keep_their_codes(call: Run, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs.copy("keratin")
    for error, code in ((MemoryError(), 3), (Interrupted(), 130), (PermissionError(13, "no", "x"), 3)):
        monkeypatch.setattr(info, "run", failing(error))
        done = call("info", log)
        assert (done.code, "Traceback" in done.err) == (code, False)


def test_a_bug_ends_the_process_with_70(logs: Logs) -> None:
    code = (
        "import sys; from duramen.cli import main; from duramen.cli.log import info\n"
        "def run(*_, **__): raise RuntimeError('unexpected')\n"
        "info.run = run; sys.exit(main.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "info", str(logs.copy("keratin"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=Path("/"))
    assert done.returncode == 70
    assert "RuntimeError: unexpected\nduramen: this is a bug in duramen" in done.stderr
