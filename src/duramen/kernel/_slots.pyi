from duramen.kernel.reference import encode_slots as encode_slots
from duramen.kernel.reference import find_slot as find_slot
from duramen.kernel.reference import infer_slot as infer_slot
from duramen.kernel.reference import scan_slots as scan_slots
