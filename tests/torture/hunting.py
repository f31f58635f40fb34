"""A hunt of this directory as a user starts it: in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_hunt(module: str, directory: Path, *arguments: str) -> str:
    """What it printed. It must have ended well, and left nothing behind."""
    run = subprocess.run(
        [sys.executable, "-m", f"tests.torture.{module}", *arguments, "--directory", str(directory)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert not list(directory.iterdir()), "what a run without a violation leaves behind"
    return run.stdout
