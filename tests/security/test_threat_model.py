"""docs/threat-model.md and SECURITY.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duramen.formats import index, rustlog, stroma
from duramen.formats.keratin import manifest
from duramen.log.transfer import source
from duramen.log.write import producer_state
from duramen.sidecar import json_file, sealed_list, tx_ledger
from tests.security.hostile import FORMATS, MEMORY_BYTES, VERBS
from tests.security.things import THINGS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
PASS_BYTES = 4 << 20


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


BOUNDS = {
    "`log.json`, `closed.json`, `compaction.json`, `metrics.json`, `verified.json`, `holds/`, `cursors/`, "
    "`topic.json`, `.cleaner_checkpoint`": _size(json_file.SMALL_BYTES),
    "`pending.json`, `change.json`, `repair.json`, `losses.json`, `origin.json`, `transaction.json`": _size(
        json_file.STATE_BYTES
    ),
    "any JSON": f"{json_file.MAX_CONTAINERS:,} lists and objects, nested {json_file.MAX_DEPTH} deep",
    "`ledger/`": _size(tx_ledger.ENTRY_BYTES),
    "`producers`": _size(producer_state.FILE_BYTES),
    "`sealed.jsonl`": f"{sealed_list.MAX_SEALED:,} lines of {_size(sealed_list.LINE_BYTES)}",
    "index": f"{_size(index.INDEX_BYTES)} (Keratin, Osiris: {_size(index.COPIED_INDEX_BYTES)})",
    "`manifest.bin`": _size(manifest.MANIFEST_BYTES),
    "snapshot and delta of a group; cursors, groups and ledger in a copy": f"{_size(stroma.GROUP_BYTES)} each",
    "segment": f"mapped, and read {_size(PASS_BYTES)} at a time",
}


@pytest.mark.parametrize("file", BOUNDS)
def test_the_bounds_are_those_of_the_code(file: str) -> None:
    [row] = re.findall(rf"^\| {re.escape(file)} \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert row.startswith(BOUNDS[file])


def test_files_that_share_a_row_share_a_bound() -> None:
    assert rustlog.CHECKPOINT_BYTES == json_file.SMALL_BYTES
    assert source.COPIED_BYTES == stroma.GROUP_BYTES


def test_the_kernel_passes_over_as_much_as_the_page_says() -> None:
    header = (ROOT / "src/duramen/kernel/pages.h").read_text(encoding="utf-8")
    assert f"#define PASS_BYTES (INT64_C({PASS_BYTES >> 20}) << 20)" in header


def test_the_numbers_of_the_matrix() -> None:
    assert f"At most {_size(MEMORY_BYTES)} of resident memory" in PAGE
    assert f"{len(FORMATS)} formats" in PAGE
    assert f"{len(THINGS)} replacements, {len(VERBS)} verbs" in PAGE


def test_how_to_report_names_no_address() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "private vulnerability report" in text
    assert "docs/threat-model.md" in text
    assert not re.search(r"\S@\S|https?://", text)
