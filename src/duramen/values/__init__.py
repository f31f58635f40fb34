"""What is in a value: decoders from bytes to columns, and encoders back.

>>> import pyarrow as pa
>>> from duramen.values import decoder
>>> orders = decoder("json", "id bigint, wood string", on_malformed="null")
>>> column, _ = orders.decode(pa.array([7, 8]), pa.array([b'{"id": 1, "wood": "oak"}', b"?"]))
>>> column.to_pylist()
[{'id': 1, 'wood': 'oak'}, None]

- `decoder` makes a `Decoder` of one of `KINDS`. It decodes one binary column, and says what it does with a value that
  does not decode: ``fail``, ``null``, or ``raw``, which keeps reason and bytes in a column of their own.
- `Decoding` applies decoders to the values and keys of batches. `Decoding.of` takes the keyword arguments that all
  readers share (`DecodeOptions`), so ``decode="amqp"`` means the same in `Log.scan`, on the command line and in Spark.
- `encoder` makes an `Encoder`, which turns typed tables back into records with values of bytes.
- A codec (one module each) turns values into one Arrow array and never raises because of what they hold.

No log and no format is known here. A codec whose library is an extra names the extra when it is missing.
"""

# mypy: implicit-reexport

from __future__ import annotations

from duramen.values.codec import Decoded
from duramen.values.decoding import (
    KINDS,
    MALFORMED,
    MALFORMED_KEY,
    MALFORMED_VALUE,
    ON_MALFORMED,
    SAMPLE_RECORDS,
    DecodeOptions,
    Decoder,
    Decoding,
    MalformedValue,
    decoder,
    python_values,
)
from duramen.values.encoding import ENCODED_KINDS, Encoder, decoded_json, encoded, encoder
