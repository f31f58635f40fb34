from duramen.kernel.reference import gather as gather
from duramen.kernel.reference import is_zero as is_zero
