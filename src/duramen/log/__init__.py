"""One log: its directory, its segments, reading, checking. Generic over a format.

`directory` finds the files, `reader` reads them, `ending` tells a torn tail from damage, `verify` checks every byte.
Nothing here writes yet, and nothing here knows the layout of a byte.
"""
