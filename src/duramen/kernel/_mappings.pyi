from duramen.kernel.reference import guard as guard
from duramen.kernel.reference import lost_at as lost_at
from duramen.kernel.reference import unguard as unguard
