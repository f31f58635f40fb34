from duramen.kernel.reference import scan_amqp as scan_amqp
from duramen.kernel.reference import scan_amqp_items as scan_amqp_items
