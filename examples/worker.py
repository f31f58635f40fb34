"""A worker: runs a command for every record of a log, until SIGTERM or ctrl-C.

    python worker.py events billing --lease 30 -- sh -c 'curl --fail --data-binary @- https://billing.example/orders'

The command gets the value of the record on standard input. If it ends with 0, the record is acknowledged; otherwise it
is delivered again after a second, and after five attempts it goes to the log `events.dead`. Start any number of
workers: each record has one holder. SIGTERM lets the current command finish. A worker that is killed loses nothing: its
record goes to another worker when the lease ends.
"""

import argparse
import logging
import subprocess

import duramen


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command for every record of a log.")
    parser.add_argument("log")
    parser.add_argument("group")
    parser.add_argument("--lease", type=float, default=30.0, help="seconds until the record of a dead worker is free")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    def work(delivery: duramen.Delivery) -> None:
        # A session of its own: ctrl-C in the terminal stops the worker after this record, not the command.
        subprocess.run(arguments.command, input=delivery.value, check=True, start_new_session=True)

    with duramen.open(arguments.log) as log:
        group = log.group(arguments.group, max_attempts=5, dead_letter=f"{arguments.log}.dead")
        done = group.consume(lease=arguments.lease).run(work)
    logging.info("stopped after %d records", done)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
