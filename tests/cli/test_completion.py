"""Shell completion, in a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_verbs_and_options(tmp_path: Path) -> None:
    script = """
        duramen --install-completion; echo "code $?"
        source "$HOME/.bash_completions/duramen.sh"
        COMP_WORDS=(duramen ver); COMP_CWORD=1; _duramen_completion duramen; echo "${COMPREPLY[@]}"
        COMP_WORDS=(duramen copy --up); COMP_CWORD=2; _duramen_completion duramen; echo "${COMPREPLY[@]}"
    """
    environment = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-3:] == ["code 0", "verify", "--update"]
