"""`duramen topic`: the topics of a store: list, create, describe, delete, add partitions."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from duramen.cli.arguments import FormatName, FormatOptions, Job, Json, Target
from duramen.cli.output import Cell, Column, Output, number, offsets, size, to_json
from duramen.disk import PosixDisk
from duramen.errors import UsageError
from duramen.formats import make
from duramen.log.place import DEFAULT_FORMAT
from duramen.store import layout
from duramen.store.names import check_topic
from duramen.store.store import Store, TopicInfo

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


class Action(StrEnum):
    LIST = "list"
    CREATE = "create"
    DESCRIBE = "describe"
    DELETE = "delete"
    ADD_PARTITIONS = "add-partitions"


def command(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The store: a directory with `topics` in it.")],
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")] = Action.LIST,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The topic; all but `list` need one.")] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="N", help="How many there are to be, in all.")
    ] = None,
    format: FormatName = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Show and change the topics of a store.

    \b
    list                            every topic
    create NAME --partitions N      a new one (--format, --option)
    describe NAME                   its partitions, offsets and sizes
    add-partitions NAME -p N        N in all; never fewer than there are
    delete NAME                     with all its records
    """
    target = Target(root, format, Target.of("", None, option).options)
    return partial(run, target, action, name, partitions, dry_run=dry_run, json=json)


def run(target: Target, action: Action, name: str | None, partitions: int | None, *, dry_run: bool, json: bool) -> int:
    with Store(target.path) as store:
        if action == Action.LIST:
            return _list(store, json)
        if name is None:
            raise UsageError(f"`topic {action}` needs the name of a topic")
        if action == Action.DESCRIBE:
            return _describe(store, name, json)
        if action == Action.CREATE:
            said = _create(store, target, name, 1 if partitions is None else partitions, dry_run)
        elif action == Action.DELETE:
            said = _delete(store, name, dry_run)
        else:
            said = _add(store, name, partitions, dry_run)
    if json:
        print(to_json({"root": target.path, "topic": name, "action": action, "dry_run": dry_run}))
    else:
        Output().line(f"{target.path}#{name}: {said}")
    return 0


def _list(store: Store, json: bool) -> int:
    names = layout.list_topics(PosixDisk(), store.root)  # `Store.topics` takes any path for a store to be
    infos = [store.describe(name) for name in names]
    if json:
        print(to_json([_tree(info) for info in infos], indent=2))
        return 0
    out = Output()
    if not infos:
        out.line(f"{store.root}: no topics")
        return 0
    rows: list[list[str | Cell]] = [
        [Cell(info.name, "name"), info.format, str(len(info.partitions)), f"{info.records:,}", size(info.size_bytes)]
        for info in infos
    ]
    columns = [Column("topic"), Column("format"), Column("partitions", True), Column("offsets", True)]
    out.table([*columns, Column("size", True)], rows, indent=0)
    return 0


def _describe(store: Store, name: str, json: bool) -> int:
    info = store.describe(name)
    if json:
        print(to_json(_tree(info), indent=2))
        return 0
    show(info, Output(), f"{store.root}#{name}")
    return 0


def show(info: TopicInfo, out: Output, title: str) -> None:
    """A topic for people."""
    out.heading(title)
    options = ", ".join(f"{key}={value}" for key, value in sorted(info.options.items()))
    pairs = [("format", f"{info.format}{f' ({options})' if options else ''}")]
    out.pairs([*pairs, ("partitions", number(len(info.partitions), "partition")), ("size", size(info.size_bytes))])
    out.blank()
    rows: list[list[str | Cell]] = []
    for part in info.partitions:
        if part.problem is not None:
            rows.append([str(part.number), Cell(part.problem, "warning"), "", "", ""])
            continue
        first, following = part.first_offset or 0, part.next_offset or 0
        held = offsets(first, following - 1) if following > first else "empty"
        rows.append([str(part.number), held, f"{following:,}", str(part.segments), size(part.size_bytes)])
    columns = [Column("partition", True), Column("holds"), Column("next", True), Column("segments", True)]
    out.table([*columns, Column("size", True)], rows)


def _tree(info: TopicInfo) -> dict[str, Any]:
    return {
        "topic": info.name,
        "format": info.format,
        "options": info.options,
        "created_ms": info.created_ms,
        "size_bytes": info.size_bytes,
        "partitions": [part._asdict() for part in info.partitions],
    }


def _create(store: Store, target: Target, name: str, partitions: int, dry_run: bool) -> str:
    format = target.format or DEFAULT_FORMAT
    if not dry_run:
        store.create(name, partitions, format, **target.options)
    else:
        make(format, **target.options).check_creation()
        if check_topic(name) in store:
            raise UsageError(f"the topic {name!r} is there already", path=store.root)
    return f"{'would make' if dry_run else 'made'} a {format} topic with {number(partitions, 'partition')}"


def _delete(store: Store, name: str, dry_run: bool) -> str:
    store.topic(name)
    info = store.describe(name)
    if not dry_run:
        store.delete(name)
    held = f"{number(len(info.partitions), 'partition')}, {size(info.size_bytes)}"
    return f"{'would remove' if dry_run else 'removed'} the topic: {held}"


def _add(store: Store, name: str, partitions: int | None, dry_run: bool) -> str:
    if partitions is None:
        raise UsageError("`topic add-partitions` needs --partitions N: how many there are to be, in all")
    before = store.topic(name).partitions
    if partitions < before:
        raise UsageError(f"the topic {name!r} has {before} partitions: they cannot become fewer", path=store.root)
    if not dry_run:
        store.add_partitions(name, partitions)
    return f"{'would have' if dry_run else 'has'} {number(partitions, 'partition')}, {partitions - before} of them new"
