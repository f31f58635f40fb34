"""Test data and Hypothesis profiles, for every test.

Profiles: "default", "ci" (chosen when CI is set) and "thorough"; `--hypothesis-profile=NAME` overrides.
Files of the fixtures are shared and must not be written to: copy them to `tmp_path` first.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

DATA = Path(__file__).parent / "data"

settings.register_profile("default", deadline=None, derandomize=False, max_examples=100)
settings.register_profile("ci", settings.get_profile("default"), max_examples=60)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Directory of the golden byte vectors of all formats but Osiris."""
    return DATA / "golden"


@pytest.fixture(scope="session")
def vectors(golden: Path) -> dict[str, Any]:
    """What `vectors.json` says about the golden files: size, digest, fields, expectations."""
    parsed: dict[str, Any] = json.loads((golden / "vectors.json").read_text(encoding="utf-8"))
    return parsed


@pytest.fixture(scope="session")
def osiris() -> Path:
    """Directory of the Osiris logs, one directory per scenario, with their truth files."""
    return DATA / "osiris"
