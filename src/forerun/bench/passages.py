"""Texts that workloads and benchmarks ask about: edits that copy most of their text, and prose that copies nothing."""

from __future__ import annotations

import random

_LIGHTHOUSE = (
    "The lighthouse stands on a narrow point of rock about two miles north of the harbour. It was built in 1871 by a "
    "company from the mainland and has been kept by the same family ever since. Every evening at dusk the keeper "
    "climbs the one hundred and twelve steps to the lantern room, trims the wick, winds the clockwork and opens the "
    "shutters. On clear nights the beam can be seen from the hills behind the town, and on foggy ones the bell is "
    "rung by hand every half minute. The oldest of the keepers, who is now ninety-one, says that the sea has not been"
    " the same since the new breakwater came."
)
_MARKET = (
    "On Thursdays the square in front of the town hall is closed to cars, and by six in the morning the first stalls "
    "are up. The baker from Orford brings rye bread and seed cakes, the two brothers from the valley sell apples, "
    "pears and, in October, quinces. Behind the fountain a woman mends umbrellas while their owners wait. There is no"
    " music, because the mayor forbade it in 1994 after a quarrel about a brass band, but the children sing all the "
    "same. At one o'clock everything is packed up again, and by two only the pigeons are left."
)
_RIVER = (
    "The river rises under a heap of stones that nobody has ever counted. For the first mile it is narrow enough to "
    "step across, and sheep do so without noticing. Then it meets the stream from the northern wood and becomes loud."
    " Below the old mill it is slow and brown, with willows on the left bank and a path for horses on the right. "
    "Boats have not gone up it since the railway came, but the rings to which they were tied are still in the wall. "
    "In dry summers you can see the date that a mason cut into the lowest course of the bridge: 1688."
)
_LETTER = (
    "Dear Mr Haldane, thank you for your letter of the ninth of March and for the drawings, which arrived in good "
    "order. The committee has looked at both proposals. We prefer the second one, with the staircase at the east end,"
    " because it leaves the old chimney where it is and costs a good deal less. Please let us know by the end of the "
    "month whether the oak can be had from the same yard as last time, and whether your men could begin in the first "
    "week of June. The roof must be closed before the autumn rains. With kind regards, Eleanor Whitcombe, secretary."
)
_INVOICE = """def invoice_total(lines, discount):
    total = 0.0
    for line in lines:
        price = line["price"] * line["quantity"]
        if line.get("is_gift"):
            continue
        total += price
    if discount is not None:
        total -= total * discount
    return round(total, 2)


def print_invoice(lines, discount):
    for line in lines:
        print(f"{line['name']:<30} {line['quantity']:>4} {line['price']:>10.2f}")
    print(f"{'total':<30} {invoice_total(lines, discount):>15.2f}")
"""
_QUEUE = """class Queue:
    def __init__(self, capacity):
        self.items = []
        self.capacity = capacity

    def push(self, item):
        if len(self.items) >= self.capacity:
            raise OverflowError("the queue is full")
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the queue is empty")
        return self.items.pop(0)

    def peek(self):
        return self.items[0] if self.items else None

    def __len__(self):
        return len(self.items)
"""

COPY = (
    f"Repeat this text word for word, and nothing else:\n\n{_LIGHTHOUSE}",
    f"Change `total` to `amount` everywhere in this program. Print the whole program and nothing else.\n\n{_INVOICE}",
    f"Print this text again, with the year 1994 changed to 1996 and nothing else changed:\n\n{_MARKET}",
    f"Add a docstring to every method of this class. Print the whole class and nothing else.\n\n{_QUEUE}",
    f"Repeat this text word for word, and nothing else:\n\n{_RIVER}",
    f"Print this letter again with the name Haldane spelt Haldene, and nothing else changed:\n\n{_LETTER}",
    f"Repeat this program line by line, and nothing else:\n\n{_QUEUE}",
    f"Correct the spelling mistakes in this text, and print all of it:\n\n{_LIGHTHOUSE.replace('keeper', 'keper')}",
    f"Repeat this text word for word, and nothing else:\n\n{_MARKET}",
    f"Repeat this program line by line, and nothing else:\n\n{_INVOICE}",
)

_GUIDE = f"The coast\n\n{_LIGHTHOUSE}\n\nThe town\n\n{_MARKET}"
_WALK = f"{_RIVER}\n\n{_MARKET}"
_FILE = f"{_LETTER}\n\n{_LIGHTHOUSE}"
_INVENTORY = """import json


class Inventory:
    def __init__(self, path):
        self.path = path
        self.items = {}

    def load(self):
        with open(self.path) as file:
            self.items = json.load(file)

    def save(self):
        with open(self.path, "w") as file:
            json.dump(self.items, file, indent=2)

    def add(self, name, count):
        if count <= 0:
            raise ValueError("count must be positive")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        present = self.items.get(name, 0)
        if present < count:
            raise ValueError(f"only {present} of {name} left")
        self.items[name] = present - count
        if not self.items[name]:
            del self.items[name]

    def total(self):
        return sum(self.items.values())

    def report(self):
        lines = []
        for name in sorted(self.items):
            lines.append(f"{name}: {self.items[name]}")
        lines.append(f"total: {self.total()}")
        return "\\n".join(lines)
"""
_READINGS = """import csv
import statistics


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def by_station(rows):
    stations = {}
    for row in rows:
        station = row["station"].strip().lower()
        value = float(row["value"])
        if value < -90 or value > 60:
            continue
        stations.setdefault(station, []).append(value)
    return stations


def summary(values):
    return {
        "count": len(values),
        "mean": round(statistics.mean(values), 1),
        "lowest": min(values),
        "highest": max(values),
    }


def print_report(path):
    stations = by_station(read_rows(path))
    for station in sorted(stations):
        result = summary(stations[station])
        print(f"{station:<20} {result['count']:>5} {result['mean']:>7} {result['lowest']:>7} {result['highest']:>7}")


if __name__ == "__main__":
    print_report("readings.csv")
"""
EDITS = (
    f"Print this text again, with the year 1871 changed to 1873, 1994 changed to 1996, and nothing else changed:\n\n"
    f"{_GUIDE}",
    f"Rename `items` to `stock` everywhere in this program. Print the whole program and nothing else.\n\n{_INVENTORY}",
    f"Correct the spelling mistakes in this text, and print all of it:\n\n"
    f"{_FILE.replace('keeper', 'keper').replace('committee', 'comittee').replace('evening', 'evning')}",
    f"Add a docstring of one line to every function of this program. Print the whole program and nothing else.\n\n"
    f"{_READINGS}",
    f"Print this text again with the town of Orford renamed to Aldeburgh, the willows turned into poplars, and nothing "
    f"else changed:\n\n{_WALK}",
    f"The method `remove` should return the count that is left. Print the whole program with this change and nothing "
    f"else.\n\n{_INVENTORY}",
    f"Print this text again without its last sentence, and nothing else changed:\n\n{_FILE}",
    f"Values below -60 should be skipped, not those below -90, and the mean should have two digits. Print the whole "
    f"program and nothing else.\n\n{_READINGS}",
)
"""Edits of whole files: texts and programs of 250 to 400 tokens, most of which the answer repeats."""
_COPIES = 4
VERBATIM = tuple(f"{text}\n\n" * _COPIES + text[:60] for text in (_LIGHTHOUSE, _MARKET, _RIVER, _LETTER))
"""Texts to go on with as they are, no chat: what stands there four times a model copies a fifth time, and a sixth."""
PROSE = tuple(
    f"Write a short story about {subject}. Use vivid language and do not repeat yourself."
    for subject in (
        "a clockmaker",
        "two rivers",
        "a lost letter",
        "the last tram",
        "an island of cats",
        "a violin that nobody can play",
        "the night the lamps went out",
        "a baker who could not sleep",
        "a bridge between two villages",
        "an astronomer and her brother",
        "a winter without snow",
        "the map in the attic",
        "a gardener on the moon",
        "the oldest door in town",
    )
)


def long_prose(words: int, seed: int) -> str:
    """A request to go on with a text of about so many words: sentences of the passages above, in some order."""
    passages = " ".join([_LIGHTHOUSE, _MARKET, _RIVER, _LETTER])
    sentences = [f"{sentence.strip()}." for sentence in passages.split(". ")]
    order = random.Random(seed)
    text: list[str] = []
    while sum(sentence.count(" ") + 1 for sentence in text) < words:
        text.append(f"{order.choice(('Then', 'Later', 'That year', 'Elsewhere', 'Still'))}: {order.choice(sentences)}")
    return f"Write the next chapter of this book, in new words.\n\n{' '.join(text)}"
