from duramen.kernel.reference import fill_amqp_names as fill_amqp_names
from duramen.kernel.reference import fill_amqp_texts as fill_amqp_texts
from duramen.kernel.reference import measure_amqp_texts as measure_amqp_texts
from duramen.kernel.reference import scan_amqp as scan_amqp
from duramen.kernel.reference import scan_amqp_pairs as scan_amqp_pairs
