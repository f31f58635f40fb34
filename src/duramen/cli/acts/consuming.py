"""Act 5: a consumer group, one of whose consumers is killed; and a producer that sends again what it sent before."""

from __future__ import annotations

import duramen
from duramen.cli.acts.stage import Stage

TITLE = "Consumers and producers"

CONSUMER = """\
import time, duramen

log = duramen.open("logs/keratin")
for delivery in log.group("billing").fetch(3, lease=1):   # mine for a second
    print("working on offset", delivery.offset, flush=True)
time.sleep(1000)
"""


def play(stage: Stage) -> None:
    stage.say("A group hands each record to one consumer, until somebody says that it is done.")
    stage.python("""
import duramen, time
log = duramen.open("logs/keratin", "a")
billing = log.group("billing")
first, second = billing.fetch(2, lease=30)
first.record.value
billing.ack(first)                         # done
billing.nack(second)                       # not now: give it to somebody
""")
    stage.say("A second consumer, in a process of its own, takes three records and is killed:")
    stage.script("consumer.py", CONSUMER)
    stage.out.blank()
    consumer = stage.start("consumer.py", into="consumer.txt")
    stage.kill([consumer], lambda: _text().count("\n") == 3)
    stage.shell("cat consumer.txt")
    stage.say("Its lease runs out, and the records go to whoever asks next. The epoch counts the deliveries:")
    stage.python("""
time.sleep(1)
again = billing.fetch(3)
[(delivery.offset, delivery.epoch) for delivery in again]
billing.ack_many(again)
log.close()
""")
    again = [(delivery.offset, delivery.epoch) for delivery in stage.names["again"]]
    stage.duramen("group", "logs/keratin", "billing")
    stage.show("A dead consumer loses no record: each went to somebody else.", again == [(1, 3), (2, 2), (3, 2)])
    stage.say("A producer numbers what it sends. When no answer comes it sends again, and it is stored once:")
    stage.python("""
log = duramen.open("till", "a", format="osiris")
till = log.producer("till 4")
till.append(b"two boards of oak", sequence=1)
till.append(b"two boards of oak", sequence=1)    # did it arrive? once more
till.append(b"a beam of larch", sequence=2)
log.close()
""")
    stage.duramen("cat", "till")
    with duramen.open("till") as log:
        values = [record.value for record in log]
    stage.show("Sent twice, stored once.", values == [b"two boards of oak", b"a beam of larch"])


def _text() -> str:
    with open("consumer.txt", encoding="utf-8") as file:
        return file.read()
