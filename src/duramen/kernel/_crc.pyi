from duramen.kernel.reference import Buffer
from duramen.kernel.reference import crc32 as crc32
from duramen.kernel.reference import crc32c as crc32c
from duramen.kernel.reference import digest as digest

def crc_variants() -> dict[str, list[str]]:
    """What this CPU can run, by checksum: the portable implementation first, the one in use last."""

def digest_with(variant: str, data: Buffer, crc32c: int = 0, crc32: int = 0) -> tuple[int, int]:
    """As `digest`, by one of the implementations of `crc_variants`."""

def crc_with(kind: str, variant: str, data: Buffer, value: int = 0) -> int:
    """As `crc32` or `crc32c`, which ``kind`` names, by one of the implementations of `crc_variants`."""
