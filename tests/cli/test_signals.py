"""Ctrl-C and SIGTERM: a slice of the hunt in `signals`, and how the program catches them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from duramen import starting
from duramen.cli.main import main
from duramen.cli.signals import Interrupted, Signals, held
from tests.cli.signals import CODES, DURAMEN, VERBS, Hunt, Verb, moments, timed, until_ready
from tests.sampling import examples

ROUNDS = {"repair": examples(9), "undo": examples(6)}
CONSOLE = [str(Path(sys.executable).parent / "duramen")]


@pytest.fixture(scope="module")
def start_s() -> float:
    return timed("--version")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_signal_leaves_the_old_state_or_the_new_one(verb: Verb, tmp_path: Path, start_s: float) -> None:
    hunt = Hunt(verb, tmp_path)
    for moment in moments(ROUNDS.get(verb.name, 1), 1, min(start_s / hunt.work_s, 1) * 0.8):
        hunt.round(moment)
    assert hunt.outcomes.total() == ROUNDS.get(verb.name, 1)


@pytest.mark.parametrize("command", [DURAMEN, CONSOLE], ids=["module", "console"])
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_while_it_starts(command: list[str], number: signal.Signals) -> None:
    with subprocess.Popen([*command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until_ready(process)
        process.send_signal(number)
        assert (*process.communicate(timeout=120), process.returncode) == (b"", b"", CODES[number])


def test_a_server_that_gets_a_signal_to_end(tmp_path: Path) -> None:
    """Its normal end; but whoever sent SIGTERM is told that this is why."""
    command = [*DURAMEN, "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"serving" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert (process.communicate(timeout=120)[1], process.returncode) == (b"", 143)


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """`nohup` and shells start a program like that."""
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *DURAMEN, "create", str(tmp_path / "log")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        until_ready(process)
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=120)[1], process.returncode) == (b"", 0)


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_held_signal_comes_when_the_block_is_over(number: signal.Signals) -> None:
    done = []
    before = [signal.getsignal(number) for number in CODES]

    def act() -> None:
        with held():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append("all of it")

    with Signals() as signals:
        signals.start()
        with pytest.raises(Interrupted):
            act()
        signal.raise_signal(number)  # impatience: it ends anyhow
        signals.finish()
        assert signals.code(130) == CODES[number]
    assert done == ["all of it"]
    assert [signal.getsignal(number) for number in CODES] == before


def test_a_block_may_ask_and_then_puts_back_undisturbed() -> None:
    done = []

    def act() -> None:
        with held() as check:
            check()
            signal.raise_signal(signal.SIGINT)
            try:
                check()
            finally:
                signal.raise_signal(signal.SIGINT)
                done.append("put back")

    with Signals() as signals:
        signals.start()
        with pytest.raises(Interrupted):
            act()
    assert done == ["put back"]


def test_an_error_in_a_held_block_stays_the_error() -> None:
    def act() -> None:
        with held():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("broken")

    with Signals() as signals:
        signals.start()
        with pytest.raises(ValueError, match="broken"):
            act()


def test_later_on_a_signal_interrupts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.cli.signals.AGAIN_S", -1.0)
    with Signals() as signals:
        signals.start()
        for _ in range(2):
            with pytest.raises(Interrupted):
                signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("times", [1, 2], ids=["once", "again while it is noticed"])
def test_an_interrupt_in_a_finalizer_is_not_lost(
    times: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_impatiently(thread: threading.Thread) -> None:
        signal.raise_signal(signal.SIGTERM)
        start(thread)

    if times == 2:
        monkeypatch.setattr(threading.Thread, "start", start_impatiently)

    class Careless:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def act() -> None:
        careless = Careless()
        del careless
        for _ in range(500):
            time.sleep(0.01)

    with Signals() as signals:
        signals.start()
        with pytest.raises(Interrupted):
            act()
        assert signals.code(130) == 143
    assert capsys.readouterr().err == ""


def test_in_another_thread_nothing_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    codes = []
    before = [signal.getsignal(number) for number in CODES]

    def run() -> None:
        with held() as check:
            check()
        codes.append(main(["--version"]))
        codes.append(before == [signal.getsignal(number) for number in CODES])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [0, True]
    assert "duramen" in capsys.readouterr().out


def test_a_library_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(argv: list[str], whole: list[str]) -> bool:
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(sys, "orig_argv", whole)
        return starting.is_program()

    assert started(["/usr/bin/duramen", "info"], ["python", "/usr/bin/duramen", "info"])
    assert started(["-m", "info"], ["python", "-X", "dev", "-m", "duramen", "info"])
    assert started(["-m"], ["python", "-mduramen"])
    assert not started(["-m", "duramen"], ["python", "-m", "pytest", "duramen"])
    assert not started(["-c"], ["python", "-c", "import duramen"])
    assert not started(["app.py", "duramen"], ["python", "app.py", "duramen"])
    assert not started([], ["python"])
    code = "import signal, duramen; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"True\n"
