"""The source: ``spark.read.format("duramen")`` and ``readStream``.

`declared` lists the options, `options` parses them, `discovery` finds the logs of a path, `plan` and `splits` divide
their records into `Split`s along the indexes, `task` reads one split into Arrow batches, `schema` names the columns.
`sampling` looks at the first values for the columns of decoded ones.
`stream` plans the micro-batches and compares each log with its `identity`; `loss` says what records are missing and
why. `map_in_arrow` reads the same splits through Spark's `mapInArrow`. `source` is the class that Spark instantiates.
Reads only; decides nothing about damage that `duramen.log` does not.
"""

from __future__ import annotations

from duramen.spark.source.discovery import LogSource, disk_of, find_places
from duramen.spark.source.identity import identity_of, is_other, parse_identity
from duramen.spark.source.loss import Loss, look_again
from duramen.spark.source.map_in_arrow import count, scan
from duramen.spark.source.options import SINCE_US, UNTIL_US, ReadOptions, option_text, parse_options
from duramen.spark.source.plan import open_log, range_of, tell_missing
from duramen.spark.source.source import DuramenSource
from duramen.spark.source.splits import Planned, Range, Split, plan_splits
from duramen.spark.source.stream import LAG, lag
from duramen.spark.source.task import Wanted, read_split
