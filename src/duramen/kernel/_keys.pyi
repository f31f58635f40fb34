from duramen.kernel.reference import keep_newest as keep_newest
from duramen.kernel.reference import siphash as siphash
