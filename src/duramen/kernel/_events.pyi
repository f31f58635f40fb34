from duramen.kernel.reference import encode_run as encode_run
