from duramen.kernel.reference import murmur2 as murmur2
