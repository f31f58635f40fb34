"""`duramen demo`: the whole story in a process of its own, what it leaves, and what it says when it fails.

The act on Spark is run by tests/spark/test_demo.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import duramen
from duramen.cli.demo import demo
from duramen.cli.demo.samples import write_samples
from duramen.cli.demo.stage import FailedError, Stage
from duramen.cli.main import app
from duramen.cli.output import Output
from tests.cli.running import FORMATS, Run


@pytest.mark.slow
def test_the_whole_story_but_spark(cli: Run, tmp_path: Path) -> None:
    result = cli("demo", "--quick", "--keep", tmp_path / "demo", timeout_s=100)
    assert (result.code, result.err) == (0, ""), result.text
    for number, act in enumerate(demo.read_acts()[:-1], 1):
        assert f"━━ {number}/6  {act.title} ━" in result.text
    assert result.text.count("✔") == 8
    assert "✘" not in result.text
    for line in ("verify damaged", "repair damaged --apply", "repair damaged --undo", "convert", "retain", "compact"):
        assert f"\n$ duramen {line}" in result.text
    assert "On Spark" not in result.text
    summary = result.text[result.text.index("What was shown") :]
    assert summary.count("   ok   ") == 6
    assert str(tmp_path / "demo") in summary
    for format in FORMATS:
        assert duramen.detect(tmp_path / "demo" / "logs" / format).format == format
    assert not duramen.verify(tmp_path / "demo" / "damaged").ok


def test_samples_to_play_with(call: Run, tmp_path: Path) -> None:
    result = call("demo", "--samples", tmp_path / "logs")
    assert (result.code, len(result.text.splitlines())) == (0, 6)
    assert duramen.open(tmp_path / "logs" / "keratin").next_offset == 300
    assert not duramen.verify(tmp_path / "logs" / "durable-log-flipped").ok
    assert call("demo", "--samples", tmp_path / "logs").fails(2, "not empty")
    assert call("demo", "--samples", tmp_path / "more", "--quick").fails(2, "cannot be used with other options")


def test_nothing_is_overwritten(call: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert call("demo", "--keep", tmp_path).fails(2, "not empty")


def _play(act: demo.Act, call_keep: Path | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = demo.run(app, None if call_keep is None else str(call_keep), acts=[act])
    return code, capsys.readouterr().out


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = Path.cwd()
    code, text = _play(demo.Act("short", lambda stage: stage.duramen("append", "log", __file__)), None, capsys)
    assert (code, Path.cwd(), list(tmp_path.iterdir())) == (0, here, [])
    assert "log: appended" in text
    assert "temporary files were deleted" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (lambda stage: stage.show("pigs fly", holds=False), "the claim is false: pigs fly"),
        (lambda stage: stage.duramen("verify", "nowhere"), "`duramen verify nowhere` returned 3 (expected 0)"),
        (lambda stage: stage.python("1 / 0"), "ZeroDivisionError: division by zero"),
    ],
)
def test_an_act_that_fails(play: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _play(demo.Act("wrong", play), tmp_path / "demo", capsys)  # type: ignore[arg-type]
    assert code == 1
    assert words in text
    assert "FAILED" in text


def test_without_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, text = _play(demo.read_acts()[-1], tmp_path / "demo", capsys)
    assert code == 0
    assert "Skipped: pyspark is not installed (`pip install 'duramen[spark]'` brings it)" in text
    assert "skipped" in text


def test_python_is_shown_as_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Output(), app)
    stage.python("x = [1,\n     2]\nsum(x)     # all\nNone")
    assert capsys.readouterr().out == "\n>>> x = [1,\n...      2]\n>>> sum(x)     # all\n3\n>>> None\n"


def test_a_process_that_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = Stage(Output(), app)
    stage.script("short.py", "raise SystemExit(7)\n")
    process = stage.start("python short.py > out.txt")
    with pytest.raises(FailedError, match="ended early with exit code 7"):
        stage.kill(lambda: False)
    assert process.returncode == 7
    assert "$ python short.py > out.txt &\n" in capsys.readouterr().out


def test_the_samples_are_the_same_every_time(tmp_path: Path) -> None:
    first, second = (write_samples(str(tmp_path / name)) for name in "ab")
    for one, other in zip(first, second, strict=True):
        files = {path.relative_to(one.path): path.read_bytes() for path in Path(one.path).rglob("*") if path.is_file()}
        assert files == {
            path.relative_to(other.path): path.read_bytes() for path in Path(other.path).rglob("*") if path.is_file()
        }
