"""Make a new log from an old one: `convert` to another format, `copy` byte by byte.

`Source` maps the log as its writer had acknowledged it at one moment; retention and the writer go on undisturbed.
`Conversion` surveys the records first (`LossSurvey`): a field that the target cannot store stops the conversion, unless
the caller allows its loss. Then it writes batch by batch into a `LogBuilder`. `Copy` takes over the segments as they
are, up to an offset or a time; `Update` brings such a copy up to date.

Both verify the new log as a whole before it gets its name, so that the destination is complete or missing. Damage in
the source stops them; a conversion may skip and list it (``on_damage="skip"``). Neither changes the source, writes to a
path that exists (other than an update), or drops a value.
"""

from __future__ import annotations

from duramen.log.transfer.conversion_origin import ORIGIN_CHUNKS_PATH, Boundary
from duramen.log.transfer.convert import Conversion, Converted, LossError, Progress, TimestampFitter, convert
from duramen.log.transfer.copy import Copied, Copy
from duramen.log.transfer.loss_survey import FIELDS, FieldLoss, LossSurvey
from duramen.log.transfer.source import Source
from duramen.log.transfer.update import Update, copy, copy_or_update
