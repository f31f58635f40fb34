"""The state of consumer groups: the golden files, torn and damaged ones, names and hashes."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen import kernel
from duramen.errors import CorruptionError, DuramenError, IncompleteHeaderError, UnknownVersionError, UsageError
from duramen.formats import GroupName, Severity, stroma
from duramen.formats.keratin import Keratin
from duramen.formats.struct import Block
from duramen.kernel.layout import NOT_FOUND, Stop
from tests.formats.stroma.plain import (
    Ack,
    BumpAckedUntil,
    ClearInflight,
    Delta,
    Event,
    Inflight,
    MarkInflight,
    Reset,
    StromaSnapshot,
    encode_event,
)

TS = 1_700_000_000_000
GROUPS = "keratin/groups"
ALL = [MarkInflight(0, TS + 30_000, 1), Ack(0), ClearInflight(1), BumpAckedUntil(1), Reset()]
STATE = StromaSnapshot(
    1,
    (Inflight(1, TS + 30_000, 1), Inflight(2, TS + 31_000, 0)),
    TS,
    tp_hash=0x94BA1184FADD70B9,
    group_hash=0x4005570295AFD25C,
)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(MarkInflight, u64, u64, u32),
    st.builds(Ack, u64),
    st.builds(ClearInflight, u64),
    st.builds(BumpAckedUntil, u64),
    st.just(Reset()),
)


def outcome(work: Callable[[], Any]) -> Any:
    """What the call returns, or the error that it raises."""
    try:
        return work()
    except CorruptionError as error:
        return error


def same_refusal(plain: Any, columns: Any) -> None:
    """Both codecs raise the same error at the same position, or neither raises."""
    assert isinstance(plain, CorruptionError) == isinstance(columns, CorruptionError)
    if isinstance(plain, CorruptionError):
        assert (type(columns), columns.message, columns.position) == (type(plain), plain.message, plain.position)
        raise plain


def decode_snapshot(data: bytes) -> StromaSnapshot:
    """The snapshot, after checking that the column codec reads the same."""
    plain, columns = outcome(lambda: StromaSnapshot.decode(data)), outcome(lambda: stroma.open_snapshot(data))
    same_refusal(plain, columns)
    assert columns.acked_until == plain.acked_until
    assert [row.tolist()[:3] for row in columns.rows] == [tuple(row) for row in plain.inflight]
    assert {name: columns.header.values[name] for name in ("created_ts_ms", "tp_hash", "group_hash", "flags")} == {
        name: getattr(plain, name) for name in ("created_ts_ms", "tp_hash", "group_hash", "flags")
    }
    return plain


def decode_delta(data: bytes) -> Delta:
    """The delta, after checking that the column codec ends at the same byte, for the same reason."""
    plain = outcome(lambda: Delta.decode(data))
    view = memoryview(data)
    if stroma.all_zero(view):
        return plain
    found = outcome(lambda: stroma.events_end(view, stroma.DELTA_HEADER.parse(view).length))
    same_refusal(plain, found)
    assert found == (len(plain.events), plain.end, plain.stop, plain.resumes_at)
    numbers = [getattr(event, "offset", getattr(event, "acked_until", 0)) for event in plain.events]
    if max(numbers, default=0) < 2**63:
        events = stroma.decode_events(view, stroma.DELTA_HEADER.parse(view).length)
        assert (events.end, events.stop, events.resumes_at) == (plain.end, plain.stop, plain.resumes_at)
        assert events.offset.tolist() == numbers
        assert [stroma.EVENT_TYPES[kind].name for kind in events.kind] == [type(e).__name__ for e in plain.events]
    return plain


def flips(data: bytes) -> list[tuple[int, bytes]]:
    return [
        (bit // 8, data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        for bit in range(len(data) * 8)
    ]


def fields_of(blocks: list[Block]) -> list[tuple[int, int, str]]:
    return [(field.position, field.length, f"{block.title}.{field.name}") for block in blocks for field in block.fields]


def with_crc(event: bytes) -> bytes:
    return event[:2] + stroma.with_crc(event[2:-4])


# --- the golden files


def test_snapshots(golden: Path) -> None:
    for name, state in (("", STATE), (".min", StromaSnapshot(0, created_ts_ms=TS))):
        data = (golden / GROUPS / f"orders-0_billing{name}.snap").read_bytes()
        assert decode_snapshot(data) == state
        assert state.encode() == data
        assert list(stroma.check_snapshot(data)) == []


def test_deltas(golden: Path, vectors: dict[str, Any]) -> None:
    data = (golden / GROUPS / "orders-0_billing.delta").read_bytes()
    expect = vectors[f"{GROUPS}/orders-0_billing.delta"]["expect"]
    delta = decode_delta(data)
    assert (delta.events, delta.end, delta.stop) == (ALL, expect["valid_bytes"], Stop.END)
    assert Delta(ALL, TS).encode() == data
    empty = (golden / GROUPS / "orders-0_billing.min.delta").read_bytes()
    assert decode_delta(empty).events == []
    assert Delta([], TS).encode() == empty == stroma.delta_header(TS)


def test_torn_delta(golden: Path, vectors: dict[str, Any]) -> None:
    name = f"{GROUPS}/negative/torn.delta"
    data, expect = (golden / name).read_bytes(), vectors[name]["expect"]
    delta = decode_delta(data)
    assert (len(delta.events), delta.end) == (expect["valid_events"], expect["valid_bytes"])
    assert delta.events == ALL[:4]
    assert (delta.stop, delta.resumes_at) == (Stop.SHORT_BODY, NOT_FOUND)
    assert [problem.code for problem in stroma.check_delta(data)] == ["torn-delta"]


def test_hashes_of_the_golden_snapshot() -> None:
    name = GroupName("orders", 0, "billing")
    assert (name.tp_hash, name.group_hash) == (STATE.tp_hash, STATE.group_hash)


# --- snapshots


def test_every_flipped_bit_of_a_snapshot_is_found() -> None:
    for _, damaged in flips(STATE.encode()):
        with pytest.raises(CorruptionError):
            decode_snapshot(damaged)


def test_every_cut_of_a_snapshot_is_found() -> None:
    data = STATE.encode()
    for length in range(len(data)):
        with pytest.raises(CorruptionError) as caught:
            decode_snapshot(data[:length])
        assert isinstance(caught.value, IncompleteHeaderError) == (length < 76)


def test_only_zeros_may_follow_a_snapshot() -> None:
    assert decode_snapshot(STATE.encode() + bytes(100)) == STATE
    with pytest.raises(CorruptionError, match="follow"):
        decode_snapshot(STATE.encode() + b"x")


@pytest.mark.parametrize("count", [3, 2**32 - 1])
def test_a_count_beyond_the_bytes_allocates_nothing(count: int) -> None:
    data = bytearray(STATE.encode())
    data[84:88] = count.to_bytes(4, "big")
    with pytest.raises(CorruptionError, match=f"claims {count} records") as caught:
        decode_snapshot(data)
    assert caught.value.position == 84


def test_a_snapshot_is_written_in_order_and_once_per_offset() -> None:
    rows = (Inflight(9, 5, 0), Inflight(2, 7, 1))
    decoded = decode_snapshot(StromaSnapshot(0, rows).encode())
    assert decoded.inflight == (rows[1], rows[0])
    assert decoded.min_deadline_ms == 5
    with pytest.raises(UsageError, match="twice"):
        StromaSnapshot(0, (Inflight(1, 2, 3), Inflight(1, 9, 9))).encode()
    with pytest.raises(UsageError, match="fit"):
        StromaSnapshot(-1).encode()


@given(u64, st.dictionaries(u64, st.tuples(u64, u32), max_size=5), u64, u64, u64)
def test_snapshots_survive(acked: int, rows: dict[int, tuple[int, int]], created: int, tp: int, group: int) -> None:
    state = StromaSnapshot(acked, tuple(Inflight(o, *rows[o]) for o in sorted(rows)), created, tp, group)
    assert decode_snapshot(state.encode()) == state


# --- deltas


@given(st.lists(events, max_size=8), u64)
def test_deltas_survive(listed: list[Event], created: int) -> None:
    data = Delta(listed, created).encode()
    delta = decode_delta(data)
    assert (delta.events, delta.created_ts_ms, delta.end, delta.stop) == (listed, created, len(data), Stop.END)


def test_a_delta_cut_anywhere_gives_the_events_before() -> None:
    data = Delta(ALL, TS).encode()
    ends = [60, 96, 120, 144, 168, 184]
    for length in range(1, 60):
        with pytest.raises(IncompleteHeaderError):
            decode_delta(data[:length])
    for length in range(60, len(data) + 1):
        whole = sum(end <= length for end in ends) - 1
        delta = decode_delta(data[:length])
        assert delta.events == ALL[:whole]
        assert delta.end == ends[whole]
        assert delta.stop.clean == (length in ends)
        assert delta.resumes_at == NOT_FOUND


def test_a_delta_cut_and_filled_with_zeros_gives_the_events_before() -> None:
    """A crash can leave a file with its new length and only part of its new bytes."""
    data = Delta(ALL[:2], TS).encode()
    for length in range(96, len(data)):
        delta = decode_delta(data[:length] + bytes(len(data) - length))
        assert delta.events == ALL[: 1 if data[length:].strip(b"\0") else 2]
        assert delta.resumes_at == NOT_FOUND


def test_every_flipped_bit_of_a_delta_is_found() -> None:
    data = Delta(ALL, TS).encode()
    for position, damaged in flips(data):
        try:
            delta = decode_delta(damaged)
        except CorruptionError:
            continue
        assert not delta.stop.clean
        assert delta.events == ALL[: len(delta.events)]
        assert delta.end <= position
        if position < 168:  # whole events follow the flipped one
            assert delta.resumes_at > position - 36
            assert [problem.severity for problem in stroma.check_delta(damaged)] == [Severity.DAMAGE]


def test_a_sector_that_did_not_arrive_is_not_damage() -> None:
    """Zeros from the end of an event to that of its sector, and whole sectors: nothing else."""
    data = Delta([MarkInflight(number, TS, 1) for number in range(60)], TS).encode()
    end = 60 + 36 * 12  # in the first sector
    older = data[:end] + bytes(512 - end) + data[512:]
    assert [(p.code, p.severity, p.position) for p in stroma.check_delta(older)] == [
        ("unsynced-delta", Severity.NOTE, end)
    ]
    lost = data[:512] + bytes(512) + data[1024:]
    assert [problem.code for problem in stroma.check_delta(lost)] == ["unsynced-delta"]
    two = data[:512] + bytes(512) + data[1024:1536] + bytes(512) + data[2048:]
    assert [problem.code for problem in stroma.check_delta(two)] == ["unsynced-delta"]
    for start, stop in ((end, 508), (end + 4, 512), (520, 1024), (512, 1020), (700, 760), (100, 160)):
        damaged = data[:start] + bytes(stop - start) + data[stop:]
        assert [problem.severity for problem in stroma.check_delta(damaged)] == [Severity.DAMAGE], (start, stop)
    for start in range(484, 1100):  # also beside a gap that is legal
        damaged = bytearray(older)
        damaged[start] ^= 0x10
        (problem,) = stroma.check_delta(damaged)
        assert problem.severity == Severity.DAMAGE or start >= len(data) - 36 or 484 <= start < 528, start


def test_an_empty_or_zero_delta_has_no_header() -> None:
    for data, stop in ((b"", Stop.END), (bytes(100), Stop.ZEROS)):
        delta = decode_delta(data)
        assert (delta.events, delta.end, delta.stop) == ([], 0, stop)
    delta = decode_delta(Delta(ALL, TS).encode() + bytes(50))
    assert (delta.events, delta.end, delta.stop) == (ALL, 184, Stop.ZEROS)


@pytest.mark.parametrize("at", [2, 4, 6])
def test_an_unknown_event_raises(at: int) -> None:
    """Version, type, flags: to skip it would change the state."""
    strange = bytearray(encode_event(Ack(1)))
    strange[at : at + 2] = b"\0\x09"
    data = Delta([Ack(0)], TS).encode() + with_crc(bytes(strange)) + encode_event(Ack(2))
    with pytest.raises(UnknownVersionError) as caught:
        decode_delta(data)
    assert caught.value.position == 84
    assert [problem.severity for problem in stroma.check_delta(data)] == [Severity.DAMAGE]
    assert list(stroma.dump_delta(data))[-1].problem == caught.value.message


def test_an_event_of_the_wrong_length_raises() -> None:
    header = stroma.EVENT.pack(magic=stroma.EVENT_MAGIC, version=1, event_type=2, len=9)
    data = stroma.delta_header(TS) + header[:2] + stroma.with_crc(header[2:] + bytes(9))
    with pytest.raises(CorruptionError, match="Ack has 9 bytes"):
        decode_delta(data)


def test_a_number_that_does_not_fit_is_refused() -> None:
    for event in (Ack(-1), Ack(2**64), MarkInflight(0, 0, 2**32)):
        with pytest.raises(UsageError, match="fit"):
            encode_event(event)


# --- longer headers


@pytest.mark.parametrize("extra", [0, 1, 40])
def test_a_longer_header_is_accepted(extra: int) -> None:
    for data, size, decode in (
        (STATE.encode(), 76, lambda buf: decode_snapshot(buf) == STATE),
        (Delta(ALL, TS).encode(), 60, lambda buf: decode_delta(buf).events == ALL),
    ):
        header = bytearray(data[: size - 4] + b"?" * extra)
        header[12:16] = (size + extra).to_bytes(4, "big")
        assert decode(stroma.with_crc(bytes(header)) + data[size:])


# --- names


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        (GroupName("orders", 0, "billing"), "orders-0_billing"),
        (GroupName("orders", 0, "billing.min"), "orders-0_billing.min"),
        (GroupName("a-1", 12, "b-2"), "a-1-12_b-2"),
        (GroupName("a_b", 1, "ü/%"), "a%5Fb-1_%C3%BC%2F%25"),
    ],
)
def test_names(name: GroupName, stem: str) -> None:
    assert name.stem == stem
    assert GroupName.parse(stem) == name


@given(st.text(min_size=1, max_size=8), st.integers(0, 2**31), st.text(min_size=1, max_size=8))
def test_names_survive(topic: str, partition: int, group: str) -> None:
    name = GroupName(topic, partition, group)
    assert GroupName.parse(name.stem) == name
    assert set(name.stem) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-%_")


@given(st.text("aB0%-_.5Fé/", max_size=12))
def test_a_stem_names_one_group_or_none(stem: str) -> None:
    name = GroupName.parse(stem)
    assert name is None or name.stem == stem


@pytest.mark.parametrize(
    "stem", ["", "a", "a-0", "-0_g", "a-0_", "a-00_g", "a_g", "a-0_g_h", "a%41-0_g", "a%5f-0_g", "a%-0_g", "%FF-0_g"]
)
def test_stems_that_no_group_has(stem: str) -> None:
    assert GroupName.parse(stem) is None


def test_names_without_a_file() -> None:
    for name in (GroupName("", 0, "g"), GroupName("t", -1, "g"), GroupName("t", 0, "\ud800")):
        with pytest.raises(UsageError):
            _ = name.stem


# --- dump, and the files of the program


@pytest.mark.parametrize(
    "name",
    [
        f"{GROUPS}/orders-0_billing.delta",
        f"{GROUPS}/orders-0_billing.min.delta",
        f"{GROUPS}/orders-0_billing.snap",
        f"{GROUPS}/orders-0_billing.min.snap",
        "keratin/stroma-impl/snapshots/orders/0000000000/orders.snap",
    ],
)
def test_dump_shows_every_field(golden: Path, vectors: dict[str, Any], name: str) -> None:
    data = (golden / name).read_bytes()
    blocks = list((stroma.dump_delta if name.endswith("delta") else stroma.dump_snapshot)(data))
    shown = fields_of(blocks)
    wanted = [(field["at"], field["len"], field["name"]) for field in vectors[name]["fields"]]
    assert [(at, length) for at, length, _ in shown] == [(at, length) for at, length, _ in wanted]
    for (_, _, title), (_, _, expected) in zip(shown, wanted, strict=True):
        assert title == expected or title.split(".")[-1] == expected
    values = [field.value for block in blocks for field in block.fields]
    for value, field in zip(values, vectors[name]["fields"], strict=True):
        if isinstance(value, int):
            assert value == int(field["value"].split()[0])
    assert not any(block.problem for block in blocks)


def test_files_of_the_program_are_recognised(golden: Path) -> None:
    data = (golden / "keratin/stroma-impl/snapshots/orders/0000000000/orders.snap").read_bytes()
    assert stroma.is_program_snapshot(data)
    assert not stroma.is_program_snapshot(STATE.encode())
    (note,) = stroma.check_snapshot(data)
    assert (note.code, note.severity) == ("foreign-snapshot", Severity.NOTE)
    with pytest.raises(UnknownVersionError, match="SSNAP"):
        decode_snapshot(data)
    damaged = bytearray(data)
    damaged[30] ^= 1
    assert list(stroma.dump_snapshot(damaged))[-1].problem == "checksum mismatch"
    assert [problem.code for problem in stroma.check_snapshot(damaged)] == ["bad-snapshot"]


def test_a_snapshot_of_the_program_is_decoded(golden: Path) -> None:
    data = (golden / "keratin/stroma-impl/snapshots/orders/0000000000/orders.snap").read_bytes()
    state = stroma.decode_program_snapshot(data)
    assert (state.last_applied_event_offset, state.settled_until) == (4, 1)
    assert state.acked.tolist() == [3]
    assert state.inflight.tolist() == [(1, 1_700_000_030_000)]
    assert state.enqueued.tolist() == [(2, 0)]
    window = next(field for block in stroma.dump_snapshot(data) for field in block.fields if field.name == "ack_window")
    assert window.note == "acknowledged: 3"
    facts = Keratin().describe({"groups/orders-0_billing.snap": data})
    assert facts["groups/orders-0_billing.snap"] == state.facts


def test_damage_to_a_snapshot_of_the_program_is_an_error(golden: Path) -> None:
    data = (golden / "keratin/stroma-impl/snapshots/orders/0000000000/orders.snap").read_bytes()
    for length in range(0, len(data), 13):
        with pytest.raises(CorruptionError):
            stroma.decode_program_snapshot(data[:length])
    for position in [*range(8, 60), *range(1060, len(data))]:
        damaged = bytearray(data)
        damaged[position] ^= 0x80
        with pytest.raises(CorruptionError):
            stroma.decode_program_snapshot(damaged)
        sound = damaged[:-4] + kernel.crc32c(damaged[8:-4]).to_bytes(4, "big")
        with contextlib.suppress(CorruptionError):  # a length that lies, with a right checksum
            stroma.decode_program_snapshot(sound)
    with pytest.raises(CorruptionError, match="unknown bytes follow"):
        stroma.decode_program_snapshot(data + b"x")
    assert stroma.decode_program_snapshot(data + bytes(9)).settled_until == 1


@pytest.mark.parametrize("kind", ["snap", "delta", "ssnap"])
def test_dump_survives_any_cut_and_flip(golden: Path, kind: str) -> None:
    data = {
        "snap": STATE.encode(),
        "delta": Delta(ALL, TS).encode(),
        "ssnap": (golden / "keratin/stroma-impl/snapshots/orders/0000000000/orders.snap").read_bytes(),
    }[kind]
    dump = stroma.dump_delta if kind == "delta" else stroma.dump_snapshot
    step = 1 if kind != "ssnap" else 11
    for length in range(0, len(data), step):
        blocks = list(dump(data[:length]))
        assert all(field.position + field.length <= length for block in blocks for field in block.fields)
    for _, damaged in flips(data)[::step]:
        assert any(block.problem for block in dump(damaged)) or kind == "ssnap"


@given(st.binary(max_size=80), st.sampled_from([b"", STATE.encode()[:76], Delta([], TS).encode(), b"SSNAP\0\0\0"]))
def test_any_bytes_raise_nothing_but_our_errors(tail: bytes, head: bytes) -> None:
    data = head + tail
    for decode in (decode_snapshot, decode_delta):
        try:
            decode(data)
        except DuramenError:
            pass
    list(stroma.dump_snapshot(data))
    list(stroma.dump_delta(data))
    list(stroma.check_snapshot(data))
    list(stroma.check_delta(data))
    stroma.find_event(data, 0)
