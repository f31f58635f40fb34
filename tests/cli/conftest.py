"""Running the command line: `cli` in a process of its own, `call` in this one, which is a hundred times faster."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from duramen.cli.demo.samples import DemoSample, write_samples
from duramen.cli.main import main
from tests import warm
from tests.cli.running import Logs, Result, Run


@pytest.fixture(scope="session")
def cli() -> Run:
    """The command in a process of its own, which a warm one forks; ``python -m MODULE`` where a module is named."""

    def run(*arguments: str | Path, module: str | None = None, timeout_s: float = 100) -> Result:
        start = warm.duramen() if module is None else (sys.executable, "-m", module)
        command = [*start, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        return Result(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same `main`, without a new process."""

    def run(*arguments: str | Path) -> Result:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main([str(argument) for argument in arguments])
        out.flush()
        err.flush()
        return Result(code, out.buffer.getvalue(), err.buffer.getvalue().decode())

    return run


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DemoSample]:
    """A log of every format; nobody may write to them."""
    written = write_samples(str(tmp_path_factory.mktemp("samples")))
    return {sample.format: sample for sample in written}


@pytest.fixture
def logs(pristine: dict[str, DemoSample], tmp_path: Path) -> Logs:
    return Logs(pristine, tmp_path)
