"""`duramen topic`: list, create, describe and delete the topics of a store, and add partitions."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, Target
from duramen.cli.output import Cell, Column, Output, number, offsets, size, to_json
from duramen.disk import PosixDisk
from duramen.errors import UsageError
from duramen.formats import make
from duramen.log import DEFAULT_FORMAT
from duramen.store import CHECKPOINTS, Store, TopicInfo, check_topic, list_topics


class TopicAction(StrEnum):
    LIST = "list"
    CREATE = "create"
    DESCRIBE = "describe"
    DELETE = "delete"
    ADD_PARTITIONS = "add-partitions"


def command(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The store: a directory that contains `topics`.")],
    action: Annotated[TopicAction, typer.Argument(metavar="ACTION", help="Action from the list.")] = (TopicAction.LIST),
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The topic; required except for `list`.")] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="N", help="Total number of partitions.")
    ] = None,
    format: FormatName = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Show and change the topics of a store.

    \b
    list                            all topics
    create NAME --partitions N      a new topic (--format, --option)
    describe NAME                   its partitions, offsets and sizes
    add-partitions NAME -p N        N partitions in total; cannot decrease
    delete NAME                     the topic and all its records
    """
    target = Target(root, format, Target.of("", None, option).options)
    return partial(run, target, action, name, partitions, dry_run=dry_run, json=json)


def run(
    target: Target, action: TopicAction, name: str | None, partitions: int | None, *, dry_run: bool, json: bool
) -> int:
    with Store(target.path) as store:
        if action == TopicAction.LIST:
            return _list(store, json)
        if name is None:
            raise UsageError(f"`topic {action}` needs the name of a topic", hint=f"duramen topic ROOT {action} NAME")
        if action == TopicAction.DESCRIBE:
            return _describe(store, name, json)
        if action == TopicAction.CREATE:
            said = _create(store, target, name, 1 if partitions is None else partitions, dry_run)
        elif action == TopicAction.DELETE:
            said = _delete(store, name, dry_run)
        else:
            said = _add(store, name, partitions, dry_run)
    if json:
        print(to_json({"root": target.path, "topic": name, "action": action, "dry_run": dry_run}))
    else:
        Output().line(f"{target.path}#{name}: {said}")
    return 0


def _list(store: Store, json: bool) -> int:
    names = list_topics(PosixDisk(), store.root)  # `Store.topics` accepts a missing directory
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
    _show_broker(store, out)
    return 0


def _show_broker(store: Store, out: Output) -> None:
    """What the directory of a Kafka broker says about itself."""
    known = store.checkpoints()
    pairs = [*known.get("meta.properties", {}).items(), *(("copy", name) for name in known.get("copies", ()))]
    if pairs:
        out.blank()
        out.pairs([(name, str(value)) for name, value in pairs])


def _describe(store: Store, name: str, json: bool) -> int:
    info, known = store.describe(name), _checkpoints(store, name)
    if json:
        print(to_json({**_tree(info), **({"checkpoints": known} if known else {})}, indent=2))
        return 0
    out = Output()
    show(info, out, f"{store.root}#{name}")
    if known:
        out.blank()
        rows: list[list[str | Cell]] = [
            [file, number, f"{offset:,}"] for file, offsets in known.items() for number, offset in offsets.items()
        ]
        out.table([Column("checkpoint"), Column("partition", True), Column("offset", True)], rows)
    return 0


def _checkpoints(store: Store, name: str) -> dict[str, dict[str, int]]:
    """What the checkpoints of a Kafka broker say about the partitions of a topic, by file."""
    found = {}
    known = store.checkpoints()
    for file in filter(known.__contains__, CHECKPOINTS):
        places = {place.rpartition("-"): offset for place, offset in known[file].items()}
        ours = {number: offset for (topic, _, number), offset in places.items() if topic == name}
        found.update({file: ours} if ours else {})
    return found


def show(info: TopicInfo, out: Output, title: str) -> None:
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
            raise UsageError(f"the topic {name!r} already exists", path=store.root)
    return f"{'would create' if dry_run else 'created'} a {format} topic with {number(partitions, 'partition')}"


def _delete(store: Store, name: str, dry_run: bool) -> str:
    store.topic(name)
    info = store.describe(name)
    if not dry_run:
        store.delete(name)
    held = f"{number(len(info.partitions), 'partition')}, {size(info.size_bytes)}"
    return f"{'would remove' if dry_run else 'removed'} the topic: {held}"


def _add(store: Store, name: str, partitions: int | None, dry_run: bool) -> str:
    if partitions is None:
        raise UsageError("`topic add-partitions` needs --partitions N, the total number of partitions")
    before = store.topic(name).partitions
    if partitions < before:
        raise UsageError(
            f"the number of partitions cannot decrease: the topic {name!r} has {before} (got {partitions})",
            path=store.root,
        )
    if not dry_run:
        store.add_partitions(name, partitions)
    return f"{'would have' if dry_run else 'has'} {number(partitions, 'partition')}, {partitions - before} of them new"
