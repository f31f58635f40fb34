"""The files that describe a whole log, rebuilt from its segments: for a format that has a manifest.

Keeps the settings that the existing files hold. Returns bytes; the caller writes them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format, Role, SegmentSummary, SupportsManifest, make
from duramen.sidecar import Config, read_config


def manifest_files(disk: Disk, root: str, fmt: Format, segments: Iterable[tuple[int, int]]) -> Mapping[str, bytes]:
    """The manifest files of the log as it is now, by path. ``segments`` are their bases and last offsets."""
    files = described_by(disk, root, fmt)
    facts = manifest_facts(fmt, files)
    described = as_described(fmt, facts)
    if not isinstance(described, SupportsManifest):
        return {}
    config = readable_config(disk, root)
    created_ms = int(facts.get("created_ts_ms", config.created_ms if config is not None else 0))
    summaries = []
    for base, last in segments:
        index = posixpath.join(root, fmt.path_of(Role.INDEX, base))
        index_bytes = disk.size(index) if disk.kind(index) == Kind.FILE else 0
        size = disk.size(posixpath.join(root, fmt.segment_path(base)))
        summaries.append(SegmentSummary(base, last, size, index_bytes))
    return described.log_files(summaries, created_ms, files)


def readable_config(disk: Disk, root: str) -> Config | None:
    """The configuration in the sidecar; None if it cannot be read."""
    try:
        return read_config(disk, root)
    except CorruptionError:
        return None


def as_described(fmt: Format, facts: Mapping[str, Any]) -> Format:
    """The format with the settings of the log's manifest, unless the caller gave others or they are invalid."""
    kept = {name: facts[name] for name in fmt.option_names if name in facts}
    try:
        return make(fmt.name, **{**kept, **fmt.options}) if kept else fmt
    except UsageError:
        return fmt


def described_at(disk: Disk, root: str, fmt: Format) -> Format:
    """The format with the settings of the manifest of the log at ``root``: see `as_described`."""
    return as_described(fmt, manifest_facts(fmt, described_by(disk, root, fmt)))


def manifest_ends(disk: Disk, root: str, fmt: Format) -> dict[tuple[int, int], int]:
    """The last offset of every sealed segment in the manifest, by base and size."""
    listed = manifest_facts(fmt, described_by(disk, root, fmt)).get("segments", ())
    return {(entry["base_offset"], entry["log_bytes"]): entry["last_offset"] for entry in listed}


def described_by(disk: Disk, root: str, fmt: Format) -> Mapping[str, memoryview]:
    """The manifest files of the log, by path."""
    if not isinstance(fmt, SupportsManifest) or disk.kind(root) != Kind.DIRECTORY:
        return {}
    paths = {name: posixpath.join(root, name) for name in fmt.log_files([], 0)}
    return {name: disk.map(path).data for name, path in paths.items() if disk.kind(path) == Kind.FILE}


def manifest_facts(fmt: Format, files: Mapping[str, memoryview]) -> Mapping[str, Any]:
    """The content of the manifest; empty if it is missing or cannot be read."""
    for name, data in files.items():
        facts = fmt.describe({name: data}).get("manifest")
        return facts if isinstance(facts, dict) else {}
    return {}
