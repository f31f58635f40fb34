"""Act 5: a consumer group with a killed consumer, and a producer that repeats an append."""

from __future__ import annotations

import duramen
from duramen.cli.demo.stage import Stage

TITLE = "Consumers and producers"

CONSUMER = """\
import time, duramen

log = duramen.open("logs/keratin")
for delivery in log.group("billing").fetch(3, lease=1):   # leased for a second
    print("working on offset", delivery.offset, flush=True)
time.sleep(1000)
"""


def play(stage: Stage) -> None:
    stage.say("A group delivers each record to one consumer at a time, until a consumer acknowledges it.")
    stage.python("""
import duramen, time
log = duramen.open("logs/keratin", "a")
billing = log.group("billing")
first, second = billing.fetch(2, lease=30)
first.record.value
billing.ack(first)                         # done
billing.nack(second)                       # deliver it again
""")
    stage.say("A second consumer, in another process, fetches three records and is killed:")
    stage.script("consumer.py", CONSUMER)
    stage.out.blank()
    consumer = stage.start("consumer.py", into="consumer.txt")
    stage.kill([consumer], lambda: _text().count("\n") == 3)
    stage.shell("cat consumer.txt")
    stage.say("Its lease expires, and the next fetch gets the records. The epoch counts the deliveries:")
    stage.python("""
time.sleep(1)
again = billing.fetch(3)
[(delivery.offset, delivery.epoch) for delivery in again]
billing.ack_many(again)
log.close()
""")
    again = [(delivery.offset, delivery.epoch) for delivery in stage.names["again"]]
    stage.duramen("group", "logs/keratin", "billing")
    stage.show("A killed consumer loses no record: another one got each of them.", again == [(1, 3), (2, 2), (3, 2)])
    _produce(stage)


def _produce(stage: Stage) -> None:
    stage.say("A producer numbers its records. After a timeout it repeats an append, and the log stores it once:")
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
