from duramen.kernel.reference import encode_frames as encode_frames
from duramen.kernel.reference import encode_values as encode_values
from duramen.kernel.reference import find_frame as find_frame
from duramen.kernel.reference import scan_frames as scan_frames
from duramen.kernel.reference import seek_frame as seek_frame
from duramen.kernel.reference import values_bytes as values_bytes
