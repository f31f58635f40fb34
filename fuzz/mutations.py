"""Fixed mutations, for a run without a fuzzer: the same seed and number always give the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def mutate(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    """One to three of the changes that break parsers."""
    out = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(out) + 1)
        kind = dice.randrange(8)
        if kind <= 1 and out:
            out[min(at, len(out) - 1)] ^= 1 << dice.randrange(8)
        elif kind == 2:
            width = dice.choice((1, 2, 4, 8))
            number = dice.choice(NUMBERS) % 256**width
            out[at : at + width] = number.to_bytes(width, dice.choice(("big", "little")))
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            out[at:at] = dice.randbytes(dice.randint(1, 8))
        elif kind == 5:
            del out[at : at + dice.randint(1, 8)]
        elif kind == 6:
            out[at:] = bytes(dice.randint(0, 64))
        else:
            other = dice.choice(others)
            cut = dice.randrange(len(other) + 1)
            out[at:] = other[cut:]
    return bytes(out)


def mutations(seeds: Sequence[bytes], count: int, seed: str) -> Iterator[bytes]:
    dice = random.Random(seed)
    for _ in range(count):
        yield mutate(dice.choice(seeds), seeds, dice)
