from duramen.kernel.reference import encode_batches as encode_batches
from duramen.kernel.reference import encode_record as encode_record
from duramen.kernel.reference import find_batch as find_batch
from duramen.kernel.reference import scan_batches as scan_batches
from duramen.kernel.reference import scan_headers as scan_headers
from duramen.kernel.reference import scan_records as scan_records
from duramen.kernel.reference import take_batches as take_batches
