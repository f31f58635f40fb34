"""The client of `tests.warm`: hands its streams and its arguments over, and ends as the command ended."""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    given = {"arguments": sys.argv[2:], "directory": os.getcwd(), "environment": dict(os.environ)}
    request = json.dumps(given).encode()
    socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(request)
    answer = connection.recv(4, socket.MSG_WAITALL)
status = os.waitstatus_to_exitcode(int.from_bytes(answer, "big"))
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
