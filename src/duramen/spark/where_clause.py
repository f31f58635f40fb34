"""A condition in SQL as ranges of offsets and times, as far as it is certain.

`bounds_of` looks at the parts that AND joins, and takes those that compare ``offset`` or ``timestamp`` with a literal.
Everything else, and everything below an OR, a NOT or a function, says nothing. The ranges contain at least the rows
that the condition selects: the caller still applies the whole condition. Evaluates no expression: literals of times
are returned as text, because their value depends on the session's time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import NamedTuple

from duramen.errors import UsageError
from duramen.record import MAX_OFFSET

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<raw>[rR](?=['"])|"[^"]*\\)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[A-Za-z_]*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<comment>--|/\*)
    |(?P<sign><=>|<=|>=|<>|!=|==|!<|!>|->|\|\||::|.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_EQUAL = ("=", "==", "<=>")
_COMPARES = (*_FLIPPED, *_EQUAL)
_WHOLE = re.compile(r"\d+[lLsSyY]?")
_DECIMAL = re.compile(r"\d+\.\d*|\.\d+")
_DATED = re.compile(r"""['"]\s*[+-]?\d{4,}(-[^'"\\]*)?['"]""")
"""A text that begins with a year. One that does not may depend on the day: ``'12:00'``, ``'now'``."""
_TYPED = ("timestamp", "timestamp_ltz", "timestamp_ntz", "date")
_CONVERTING = ("timestamp_seconds", "timestamp_millis", "timestamp_micros")


class Token(NamedTuple):
    kind: str
    text: str

    @property
    def word(self) -> str:
        """In lower case, for a word that is not quoted."""
        return self.text.lower() if self.kind == "word" else ""


Tokens = Sequence[Token]


class TimeBound(NamedTuple):
    """A comparison of ``timestamp`` with a literal; ``sign`` is ``<``, ``<=``, ``>`` or ``>=``."""

    sign: str
    literal: str


@dataclass
class Bounds:
    """What a condition says about offsets, and which times it compares."""

    from_offset: int = 0
    to_offset: int = MAX_OFFSET
    """Exclusive."""
    times: list[TimeBound] = field(default_factory=list)


def bounds_of(condition: str) -> Bounds:
    """The ranges that a condition in SQL names.

    >>> bounds_of("offset >= 10 AND offset < 20 AND key IS NOT NULL")
    Bounds(from_offset=10, to_offset=20, times=[])
    >>> bounds_of("offset >= 10 OR key IS NULL")
    Bounds(from_offset=0, to_offset=9223372036854775807, times=[])
    """
    found = Bounds()
    tokens = list(_tokens(condition))
    if any(token.kind in ("comment", "raw") for token in tokens):  # a backslash may escape nothing
        return found
    for part in _parts(tokens):
        _take(part, found)
    return found


def _tokens(text: str) -> Iterator[Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise UsageError(f"where={text!r} cannot be read from character {position} on", hint="it is SQL text")
        yield Token(match.lastgroup, match[match.lastgroup])
        position = match.end()


def _parts(tokens: Tokens) -> Iterator[Tokens]:
    """What AND joins, without enclosing parentheses. Nothing, where OR joins."""
    inside = _unwrapped(tokens)
    parts, start, depth, between = [], 0, 0, 0
    for number, token in enumerate(inside):
        if token.text in ("(", "[") or token.word == "case":
            depth += 1
        elif token.text in (")", "]") or token.word == "end":
            depth -= 1
            if depth < 0:  # a column that is called like a keyword
                return
        elif depth:
            continue
        elif token.word == "or" or token.text == "->":
            return
        elif token.word == "between":
            between += 1
        elif token.word == "and" and between:
            between -= 1
        elif token.word == "and":
            parts.append(inside[start:number])
            start = number + 1
    if not parts:
        yield inside
        return
    for part in (*parts, inside[start:]):
        yield from _parts(part)


def _unwrapped(tokens: Tokens) -> Tokens:
    while len(tokens) > 1 and tokens[0].text == "(" and _closing(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def _closing(tokens: Tokens) -> int:
    """Where the parenthesis closes that is the first token."""
    depth = 0
    for number, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if not depth:
            return number
    return -1


# --- one part


def _take(part: Tokens, found: Bounds) -> None:
    """Narrow the bounds by a comparison; do nothing for any other part."""
    if len(part) < 3:
        return
    column, sign, rest = _column(part[0]), part[1].text.lower(), part[2:]
    if column is not None and sign in _COMPARES:
        _narrow(column, sign, rest, found)
    elif column is not None and part[1].word == "between":
        joins = [number for number, token in enumerate(rest) if token.word == "and"]
        literal = _number if column == "offset" else _time_text
        if len(joins) == 1 and literal(rest[: joins[0]]) is not None and literal(rest[joins[0] + 1 :]) is not None:
            _narrow(column, ">=", rest[: joins[0]], found)
            _narrow(column, "<=", rest[joins[0] + 1 :], found)
    elif column == "offset" and part[1].word == "in":
        _among(rest, found)
    else:
        column, sign = _column(part[-1]), part[-2].text
        if column is not None and sign in _COMPARES:
            _narrow(column, _FLIPPED.get(sign, sign), part[:-2], found)


def _column(token: Token) -> str | None:
    name = token.text[1:-1] if token.kind == "quoted" else token.word
    return name.lower() if name.lower() in ("offset", "timestamp") else None


def _narrow(column: str, sign: str, literal: Tokens, found: Bounds) -> None:
    if sign in _EQUAL:
        _narrow(column, ">=", literal, found)
        _narrow(column, "<=", literal, found)
        return
    if column == "timestamp":
        text = _time_text(_unwrapped(literal))
        if text is not None:
            found.times.append(TimeBound(sign, text))
        return
    number = _number(_unwrapped(literal))
    if number is None:
        return
    if sign in (">", ">="):
        lowest = int(number.to_integral_value(ROUND_FLOOR)) + (sign == ">" and number == number.to_integral_value())
        found.from_offset = min(max(found.from_offset, lowest), MAX_OFFSET)
    else:
        end = int(number.to_integral_value(ROUND_CEILING)) + (sign == "<=" and number == number.to_integral_value())
        found.to_offset = max(min(found.to_offset, end), 0)


def _among(rest: Tokens, found: Bounds) -> None:
    """``offset IN (1, 2, 3)``: from the least to the greatest."""
    if _closing(rest) != len(rest) - 1 or rest[0].text != "(":
        return
    items: list[list[Token]] = [[]]
    for token in rest[1:-1]:
        if token.text == ",":
            items.append([])
        else:
            items[-1].append(token)
    numbers = [_number(item) for item in items]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        for sign, number in ((">=", min(known)), ("<=", max(known))):
            _narrow("offset", sign, _as_tokens(number), found)


def _as_tokens(number: Decimal) -> Tokens:
    sign = [Token("sign", "-")] if number < 0 else []
    return [*sign, Token("number", str(abs(number)))]


def _number(tokens: Tokens) -> Decimal | None:
    """A whole number or a decimal, perhaps negative. Others are compared as floats, which are not exact."""
    is_negative = len(tokens) == 2 and tokens[0].text == "-"
    if len(tokens) != 1 + is_negative or tokens[-1].kind != "number":
        return None
    text = tokens[-1].text
    if _WHOLE.fullmatch(text):
        text = text.rstrip("lLsSyY")
    elif not _DECIMAL.fullmatch(text):
        return None
    return -Decimal(text) if is_negative else Decimal(text)


def _time_text(tokens: Tokens) -> str | None:
    """A literal of a time, as SQL; None for what is not one, or may depend on the moment."""
    words = [token.word for token in tokens]
    text = " ".join(token.text for token in tokens)
    if len(tokens) == 1 and _DATED.fullmatch(text):
        return text
    if len(tokens) == 2 and words[0] in _TYPED and _DATED.fullmatch(tokens[1].text):
        return text
    is_call = len(tokens) > 3 and tokens[1].text == "(" and tokens[-1].text == ")"
    inside = tokens[2:-1]
    if is_call and words[0] in _CONVERTING and _is_whole(inside):
        return text
    if is_call and words[0] == "to_timestamp" and len(inside) == 1 and _DATED.fullmatch(inside[0].text):
        return text
    if is_call and words[0] == "cast" and len(inside) == 3 and inside[1].word == "as" and inside[2].word in _TYPED:
        return text if _DATED.fullmatch(inside[0].text) else None
    return None


def _is_whole(tokens: Tokens) -> bool:
    number = _number(tokens)
    return number is not None and number == number.to_integral_value()
