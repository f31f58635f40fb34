"""Compaction: of every key only the newest record stays. `keys` says what a record's key is, `survivors` finds which
offsets stay in bounded memory, `compact` rewrites the segments and swaps them in."""
