from duramen.kernel.reference import encode_chunks as encode_chunks
from duramen.kernel.reference import encode_entries as encode_entries
from duramen.kernel.reference import find_chunk as find_chunk
from duramen.kernel.reference import scan_chunks as scan_chunks
from duramen.kernel.reference import scan_entries as scan_entries
from duramen.kernel.reference import scan_prefixed as scan_prefixed
from duramen.kernel.reference import seek_chunk as seek_chunk
from duramen.kernel.reference import split_chunks as split_chunks
