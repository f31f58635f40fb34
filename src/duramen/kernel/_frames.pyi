from duramen.kernel.reference import encode_frames as encode_frames
from duramen.kernel.reference import find_frame as find_frame
from duramen.kernel.reference import measure_values as measure_values
from duramen.kernel.reference import pick_strides as pick_strides
from duramen.kernel.reference import scan_frames as scan_frames
from duramen.kernel.reference import seek_frame as seek_frame
