"""A profile as one HTML page: pictures drawn as SVG inside of it, nothing loaded from anywhere, no script.

Keys may hold anything; every text is escaped. Looks right on paper, too, and in the dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

from duramen.spark.jobs.profile import TOP_KEYS, Profile
from duramen.spark.jobs.sketches import Order, SketchRates

WIDTH, HEIGHT = 860, 180
LEFT, BOTTOM, TOP = 70, 24, 10
MAX_BAR = 80

_STYLE = """
:root { color-scheme: light dark; --ink: #23211d; --soft: #76706a; --bar: #8a5a2b; --bad: #b3341f; --paper: #fffdf9;
  --line: #e2dcd2; }
@media (prefers-color-scheme: dark) { :root { --ink: #ece7df; --soft: #a39c93; --bar: #d09a5c; --bad: #ff8a73;
  --paper: #1b1917; --line: #3a3631; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 900px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem }
p.sub, figcaption { color: var(--soft); margin: .2rem 0 } figure { margin: 0 }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: .6rem 1rem; margin: 1rem 0 }
dt { color: var(--soft); font-size: .85rem } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums }
dd.bad { color: var(--bad) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: normal; color: var(--soft) } td, th { padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere } td.n, th.n { text-align: right }
svg { width: 100%; height: auto; display: block } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
rect.bar { fill: var(--bar) } line { stroke: var(--line) }
"""


def page(profile: Profile) -> str:
    parts = [
        f"<h1>{escape(profile.path)}</h1>",
        f"<p class=sub>{escape(', '.join(profile.formats))}, {count(len(profile.segments))} segments</p>",
        _figures(profile),
        _rates_pictures(profile),
        _sizes_picture(profile),
        _keys_picture(profile),
        _segments_picture(profile),
        _gaps_table(profile),
    ]
    title = f"Profile of {escape(profile.path)}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(part for part in parts if part)}\n</body></html>\n"
    )


def size(size_bytes: float) -> str:
    """
    >>> size(17), size(1536), size(3 << 30)
    ('17 B', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def count(number: float) -> str:
    """
    >>> count(1234567), count(0.25)
    ('1,234,567', '0.25')
    """
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"


def _figures(profile: Profile) -> str:
    total, orders = profile.total, [order for _, order in profile.logs]
    gaps, missing = sum(o.gaps for o in orders), sum(o.missing for o in orders)
    backwards = sum(o.backwards for o in orders)
    exact = "" if total.heavy.is_exact else "about "
    rows: list[tuple[str, str, bool]] = [
        ("records", count(profile.records), False),
        ("bytes of values", size(total.values.total_bytes), False),
        ("a value has", f"{size(total.values.least or 0)} to {size(total.values.most or 0)}", False),
        ("empty values", count(total.empty), False),
        ("different keys", exact + count(profile.distinct_keys), False),
        ("records without key", count(total.keyless), False),
        ("gaps", f"{count(gaps)} ({count(missing)} offsets)" if gaps else "none", gaps > 0),
        ("duplicates", "not counted" if profile.duplicates is None else count(profile.duplicates),
         bool(profile.duplicates)),
        ("steps back in time", count(backwards), backwards > 0),
    ]  # fmt: skip
    if backwards:
        rows.append(("largest step back", _seconds(max(o.largest_step_us for o in orders)), True))
    inner = "".join(
        f"<div><dt>{escape(label)}</dt><dd{' class=bad' if is_bad else ''}>{escape(text)}</dd></div>"
        for label, text, is_bad in rows
    )
    return f"<dl>{inner}</dl>"


def _seconds(us: float) -> str:
    return f"{us / 1e6:,.3g} s" if us >= 1000 else f"{us} µs"


def _rates_pictures(profile: Profile) -> str:
    rates = profile.total.rates.narrowed(200)
    if not rates.buckets:
        return "<h2>Over time</h2><p class=sub>The records have no time.</p>"
    first, last = min(rates.buckets), max(rates.buckets)
    counts = [rates.buckets.get(number, (0, 0))[0] / rates.width_s for number in range(first, last + 1)]
    sums = [rates.buckets.get(number, (0, 0))[1] / rates.width_s for number in range(first, last + 1)]
    ends = (_moment(first, rates), _moment(last + 1, rates))
    width = _width(rates.width_s)
    return (
        f"<h2>Over time</h2>{bars(counts, ends, 'records/s', count)}"
        f"{bars(sums, ends, 'bytes/s', size)}<p class=sub>One bar: {width}.</p>"
    )


def _width(seconds: int) -> str:
    """
    >>> _width(64), _width(4096)
    ('64 s', '1.1 h')
    """
    if seconds < 600:
        return f"{seconds} s"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def _moment(number: int, rates: SketchRates) -> str:
    try:
        when = datetime.fromtimestamp(number * rates.width_s, UTC)
    except (OverflowError, ValueError, OSError):
        return "?"
    return when.strftime("%Y-%m-%d %H:%M:%S")


def _sizes_picture(profile: Profile) -> str:
    powers = profile.total.values.powers
    used = [power for power, number in enumerate(powers) if number]
    if not used:
        return ""
    span = range(used[0], used[-1] + 1)
    labels = ["0 B" if power == 0 else f"{size((1 << power) >> 1)}" for power in span]
    return "<h2>Sizes of values</h2>" + bars(
        [float(powers[power]) for power in span], None, "records, by size from", count, labels
    )


def _keys_picture(profile: Profile) -> str:
    heavy = profile.total.heavy
    top = heavy.top(TOP_KEYS)
    if not top:
        return ""
    keyed = max(profile.total.keys.count, 1)
    most = top[0][1]
    rows = []
    for key, number in top:
        share = number / keyed
        bar = f'<rect class="bar" width="{200 * number / most:.1f}" height="10"/>'
        picture = f'<svg viewBox="0 0 200 10" aria-hidden="true">{bar}</svg>'
        rows.append(
            f"<tr><td>{escape(shown(key))}</td><td class=n>{count(number)}</td><td class=n>{share:.2%}</td>"
            f"<td style='width:200px'>{picture}</td></tr>"
        )
    note = "" if heavy.is_exact else f"<p class=sub>Counts may be too low by up to {count(heavy.error)}.</p>"
    head = "<tr><th>key</th><th class=n>records</th><th class=n>share</th><th></th></tr>"
    return f"<h2>Most frequent keys</h2><table>{head}{''.join(rows)}</table>{note}"


def shown(key: bytes) -> str:
    """A key as text; what is not text as escapes.

    >>> shown(b"ok"), shown(bytes([255, 0]))
    ('ok', '\\\\xff\\\\x00')
    """
    text = key[:80].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text + ("…" if len(key) > 80 else "") if text else "(empty)"


def _segments_picture(profile: Profile) -> str:
    if len(profile.segments) < 2:
        return ""
    sizes = [float(size_bytes) for _, _, size_bytes in profile.segments]
    step = -(-len(sizes) // 400)
    merged = [sum(sizes[at : at + step]) for at in range(0, len(sizes), step)]
    ends = (f"offset {profile.segments[0][1]:,}", f"offset {profile.segments[-1][1]:,}")
    caption = "bytes per segment" if step == 1 else f"bytes per {step} segments"
    return "<h2>Segments</h2>" + bars(merged, ends, caption, size)


def _gaps_table(profile: Profile) -> str:
    rows = [(path, gap) for path, order in profile.logs for gap in order.largest]
    if not rows:
        return ""
    rows.sort(key=lambda row: row[1][0] - row[1][1])
    body = "".join(
        f"<tr><td>{escape(path)}</td><td class=n>{first:,}</td><td class=n>{last:,}</td>"
        f"<td class=n>{last - first + 1:,}</td></tr>"
        for path, (first, last) in rows[: Order.MOST_GAPS]
    )
    head = "<tr><th>log</th><th class=n>from offset</th><th class=n>to offset</th><th class=n>offsets</th></tr>"
    return f"<h2>Largest gaps</h2><table>{head}{body}</table>"


def bars(
    values: Sequence[float],
    ends: tuple[str, str] | None,
    caption: str,
    unit: Callable[[float], str],
    labels: Sequence[str] = (),
) -> str:
    """A bar chart: the scale at the left, the ends (or a label for each bar) below."""
    most = max(values, default=0) or 1
    inner_width, inner_height = WIDTH - LEFT, HEIGHT - BOTTOM - TOP
    step = min(inner_width / max(len(values), 1), MAX_BAR)
    parts = []
    for share in (0, 0.5, 1):
        y = TOP + inner_height * (1 - share)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = escape(unit(most * share))
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    gap = min(1.0, step / 5)
    for number, value in enumerate(values):
        height = inner_height * value / most
        x, y = LEFT + number * step, TOP + inner_height - height
        parts.append(f'<rect class="bar" x="{x:.2f}" y="{y:.2f}" width="{step - gap:.2f}" height="{height:.2f}"/>')
    base = HEIGHT - 7
    for number, label in enumerate(labels):
        x = LEFT + (number + 0.5) * step
        parts.append(f'<text x="{x:.1f}" y="{base}" text-anchor="middle">{escape(label)}</text>')
    if ends is not None:
        parts.append(f'<text x="{LEFT}" y="{base}">{escape(ends[0])}</text>')
        parts.append(f'<text x="{WIDTH}" y="{base}" text-anchor="end">{escape(ends[1])}</text>')
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>"
