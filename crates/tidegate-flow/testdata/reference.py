#!/usr/bin/env python3
"""An independent reference for every operator: each from its definition, with the standard library alone.

    reference.py FOLDER     writes kernels.json, formats.json, numbers.json, hashes.json and training.json into FOLDER

The tests of tidegate-flow run the same inputs through flows and compare. The computations here are as plain as may be: means
by fsum over the whole window, sketches as sets of registers, trees by trying every split.
"""

import json
import math
import random
import struct
import sys
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

MASK = (1 << 64) - 1
SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND


# The hash, as the chapter on flows describes it.

def finish(h):
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
    return h ^ (h >> 31)


def hash_bytes(seed, data):
    h = seed ^ ((len(data) * 0x9E3779B97F4A7C15) & MASK)
    for at in range(0, len(data), 8):
        word = int.from_bytes(data[at : at + 8], "little")
        h = ((h ^ word) * 0xFF51AFD7ED558CCD) & MASK
        h ^= h >> 32
    return finish(h)


def hash_secretly(seed, data):
    secret = finish(seed ^ 0x9E3779B97F4A7C15) | 1
    h = seed ^ ((len(data) * 0x9E3779B97F4A7C15) & MASK)
    for at in range(0, len(data), 8):
        word = int.from_bytes(data[at : at + 8], "little")
        product = (h ^ word) * secret
        h = (product & MASK) ^ (product >> 64) ^ ((h << 23 | h >> 41) & MASK)
    return finish(h)


def hash_value(value):
    if isinstance(value, str):
        return hash_bytes(0, value.encode())
    return hash_bytes(0, struct.pack("<d", value + 0.0))


def hash_word(seed, word):
    return hash_bytes(seed, word.to_bytes(8, "little"))


# Operators: each has `step(value, now)` with a value or None, and returns its outputs.

class Kalman:
    def __init__(self, q, r, p0, x0=None):
        self.q, self.r, self.p, self.x = q, r, p0, x0

    def step(self, z, now):
        if z is None:
            return [self.x]
        if self.x is None:
            self.x = z
            return [z]
        p = self.p + self.q
        gain = p / (p + self.r)
        self.x = self.x + gain * (z - self.x)
        self.p = (1 - gain) * p
        return [self.x]


def aggregate(kind, values):
    if kind == "count":
        return float(len(values))
    if not values:
        return None
    return {"average": lambda v: math.fsum(v) / len(v), "min": min, "max": max}[kind](values)


class Running:
    def __init__(self, kind):
        self.kind, self.values = kind, []

    def step(self, value, now):
        if value is not None:
            self.values.append(value)
        return [aggregate(self.kind, self.values)]


class Decay:
    def __init__(self, alpha):
        self.alpha, self.mean = alpha, None

    def step(self, value, now):
        if value is not None:
            self.mean = value if self.mean is None else self.mean + self.alpha * (value - self.mean)
        return [self.mean]


class TumblingCount:
    def __init__(self, kind, size, hold=False):
        self.kind, self.size, self.hold, self.values, self.held = kind, size, hold, [], None

    def step(self, value, now):
        result = None
        if value is not None:
            self.values.append(value)
            if len(self.values) == self.size:
                self.held = result = aggregate(self.kind, self.values)
                self.values = []
        return [self.held if self.hold else result]


class SlidingCount:
    def __init__(self, kind, size):
        self.kind, self.size, self.values = kind, size, []

    def step(self, value, now):
        if value is not None:
            self.values = (self.values + [value])[-self.size :]
        return [aggregate(self.kind, self.values)]


class TumblingTime:
    def __init__(self, kind, nanos, hold=False):
        self.kind, self.nanos, self.hold = kind, nanos, hold
        self.window, self.values, self.held = None, [], None

    def step(self, value, now):
        window, result = now // self.nanos, None
        if self.window is None or window > self.window:
            if self.values:
                self.held = result = aggregate(self.kind, self.values)
            self.window, self.values = window, []
        if value is not None and window == self.window:
            self.values.append(value)
        return [self.held if self.hold else result]


class SlidingTime:
    def __init__(self, kind, nanos, panes):
        self.kind, self.pane, self.panes, self.seen, self.latest = kind, nanos // panes, panes, [], None

    def step(self, value, now):
        pane = now // self.pane
        self.latest = pane if self.latest is None else max(pane, self.latest)
        if value is not None and pane > self.latest - self.panes:
            self.seen.append((pane, value))
        held = [v for p, v in self.seen if p > self.latest - self.panes]
        return [aggregate(self.kind, held)]


class InterpolateMean:
    def __init__(self, window):
        self.window, self.values = window, []

    def step(self, value, now):
        if value is None:
            return [math.fsum(self.values) / len(self.values) if self.values else None]
        self.values = (self.values + [value])[-self.window :]
        return [value]


class InterpolateLinear:
    def __init__(self):
        self.number, self.known = 0, []

    def step(self, value, now):
        self.number += 1
        if value is not None:
            self.known.append((self.number, value))
            return [value]
        if len(self.known) < 2:
            return [self.known[-1][1] if self.known else None]
        (n1, y1), (n2, y2) = self.known[-2:]
        return [y2 + (y2 - y1) / (n2 - n1) * (self.number - n2)]


class Distinct:
    def __init__(self, precision):
        self.precision, self.m = precision, 1 << precision
        self.registers = {}

    def step(self, value, now):
        if value is not None:
            bits = format(hash_value(value), "064b")
            index, rest = int(bits[: self.precision], 2), bits[self.precision :]
            rank = rest.index("1") + 1 if "1" in rest else len(rest) + 1
            self.registers[index] = max(rank, self.registers.get(index, 0))
        zeros = self.m - len(self.registers)
        total = Fraction(zeros) + sum(Fraction(1, 1 << rank) for rank in self.registers.values())
        alpha = {4: 0.673, 5: 0.697, 6: 0.709}.get(self.precision, 0.7213 / (1 + 1.079 / self.m))
        raw = alpha * self.m * self.m / float(total)
        return [self.m * math.log(self.m / zeros) if raw <= 2.5 * self.m and zeros else raw]


class Moment:
    def __init__(self, averages, groups):
        self.averages, self.groups, self.counts = averages, groups, {}

    def step(self, value, now):
        if value is not None:
            h = hash_value(value)
            self.counts[h] = self.counts.get(h, 0) + 1
        means = []
        for group in range(self.groups):
            squares = []
            for bit in range(self.averages):
                z = 0
                for h, count in self.counts.items():
                    z += count if hash_word(group + 1, h) >> bit & 1 else -count
                squares.append(z * z)
            means.append(sum(squares) / self.averages)
        return [sorted(means)[self.groups // 2]]


class Regression:
    """The line by the normal equations, in exact fractions."""

    def __init__(self, window, ahead, timed=False):
        self.window, self.ahead, self.timed, self.points, self.number = window, ahead, timed, [], 0

    def step(self, value, now):
        if value is not None:
            self.number += 1
            x = Fraction(now, SECOND) if self.timed else Fraction(self.number)
            self.points = (self.points + [(x, Fraction(value))])[-self.window :]
        n = len(self.points)
        if n < 2:
            return [None, None]
        sx, sy = sum(x for x, _ in self.points), sum(y for _, y in self.points)
        sxx, sxy = sum(x * x for x, _ in self.points), sum(x * y for x, y in self.points)
        if n * sxx == sx * sx:
            return [None, None]
        slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        base = (sy - slope * sx) / n
        return [float(slope), float(base + slope * (self.points[-1][0] + Fraction(self.ahead)))]


class Threshold:
    def __init__(self, above=None, below=None, hysteresis=0.0, fires="every"):
        self.above, self.below, self.h, self.fires, self.on = above, below, hysteresis, fires, False

    def step(self, value, now):
        if value is None:
            return [None]
        was, h = self.on, self.h if self.on else 0.0
        self.on = (self.above is not None and value > self.above - h) or (
            self.below is not None and value < self.below + h
        )
        fired = {
            "every": self.on,
            "rise": self.on and not was,
            "fall": was and not self.on,
            "change": self.on != was,
        }[self.fires]
        return [1.0 if fired else 0.0]


class Bloom:
    def __init__(self, expected, share, members, learn, keep):
        self.bits = -(-max(1, math.ceil(-expected * math.log(share) / math.log(2) ** 2)) // 64) * 64
        self.places = min(32, max(1, round(self.bits / expected * math.log(2))))
        self.expected, self.learn, self.keep, self.set, self.count = expected, learn, keep, set(), 0
        for member in members:
            self.insert(hash_value(member))

    def where(self, h):
        step = finish(h) | 1
        return [(((h + i * step) & MASK) * self.bits) >> 64 for i in range(self.places)]

    def insert(self, h):
        self.count += 1
        self.set.update(self.where(h))

    def keeps(self, value):
        h = hash_value(value)
        known = all(place in self.set for place in self.where(h))
        if not known and self.learn and self.count < self.expected:
            self.insert(h)
        return known == (self.keep == "known")


# Cases: a description, messages, and what is published for each, or null; where it is said, under which topics, and how many are bad.

def text(value):
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def spec(steps, outputs, fields=None, **more):
    fields = fields or ["k:text", {"name": "x", "optional": True}]
    notify = {"kernel": "notify", "topic": "out", "fields": outputs}
    return {
        "topics": ["#"],
        "key": {"field": "k"},
        "parse": {"format": "csv", "fields": fields},
        "step": steps + [notify],
        **more,
    }


def series(random, count, keys, missing=0.0, lateness=0):
    """Rows (now, key, x): values that wander, keys in turn and out of it."""
    now, rows, values = EPOCH, [], {}
    for _ in range(count):
        now += random.choice([0, 1, 100_000_000, 700_000_000, 3 * SECOND])
        key = f"k{random.randrange(keys)}"
        values[key] = values.get(key, random.uniform(-50, 50)) + random.gauss(0, 3)
        value = None if random.random() < missing else round(values[key], random.choice([0, 1, 3, 9]))
        rows.append((now - random.randrange(lateness + 1), key, value))
    return rows


def keyed(name, steps, outputs, make, rows):
    """A case in which each key has an operator of its own."""
    states, expected = {}, []
    for now, key, value in rows:
        expected.append(states.setdefault(key, make()).step(value, now))
    return {
        "name": name,
        "spec": spec(steps, outputs),
        "messages": [[now, "a/b", f"{key},{text(value)}"] for now, key, value in rows],
        "expected": expected,
    }


def kernels(random):
    cases = []
    rows = lambda missing=0.1: series(random, 120, 4, missing)
    for q, r, p0, x0 in [(0.125, 0.32, 30.0, None), (0.1, 0.1, 1.0, 0.0), (0.0, 2.0, 5.0, 7.5)]:
        step = {"kernel": "kalman", "field": "x", "into": "y", "q": q, "r": r, "p0": p0}
        if x0 is not None:
            step["x0"] = x0
        cases.append(keyed(f"kalman q={q} x0={x0}", [step], ["y"], lambda: Kalman(q, r, p0, x0), rows()))
    for kind in ["average", "min", "max", "count"]:
        def case(name, window, make):
            step = {"kernel": kind, "field": "x", "into": "y", **({"window": window} if window else {})}
            cases.append(keyed(f"{kind} {name}", [step], ["y"], make, rows()))
        case("running", None, lambda: Running(kind))
        for size in [1, 2, 7, 64]:
            case(f"sliding {size}", {"sliding": size}, lambda: SlidingCount(kind, size))
        case("tumbling 5", {"tumbling": 5}, lambda: TumblingCount(kind, 5))
        case("tumbling 5 held", {"tumbling": 5, "hold": True}, lambda: TumblingCount(kind, 5, True))
        case("tumbling 10s", {"tumbling": "10s"}, lambda: TumblingTime(kind, 10 * SECOND))
        case("tumbling 10s held", {"tumbling": "10s", "hold": True}, lambda: TumblingTime(kind, 10 * SECOND, True))
        case("sliding 30s", {"sliding": "30s", "panes": 5}, lambda: SlidingTime(kind, 30 * SECOND, 5))
    step = {"kernel": "average", "field": "x", "into": "y", "alpha": 0.2}
    cases.append(keyed("average decaying", [step], ["y"], lambda: Decay(0.2), rows()))
    # By a field: times in it come late by up to 20 s, and arrival is far from it.
    for name, window, make in [
        ("tumbling", {"tumbling": "10s", "time": "t"}, lambda: TumblingTime("average", 10 * SECOND)),
        ("sliding", {"sliding": "30s", "panes": 3, "time": "t"}, lambda: SlidingTime("average", 30 * SECOND, 3)),
    ]:
        case = keyed("", [], [], make, [(now // 1_000_000 * 1_000_000, k, x) for now, k, x in
                                        series(random, 120, 4, 0.1, 20 * SECOND)])
        fields = ["k:text", {"name": "t", "type": "time", "unit": "ms"}, {"name": "x", "optional": True}]
        steps = [{"kernel": "average", "field": "x", "into": "y", "window": window}]
        case["name"] = f"average {name} by a field"
        case["spec"] = spec(steps, ["y"], fields)
        case["messages"] = [
            [7, "a", f"{body.split(',')[0]},{now // 1_000_000},{body.split(',')[1]}"]
            for now, _, body in case["messages"]
        ]
        cases.append(case)
    step = {"kernel": "interpolate", "field": "x", "window": 5}
    cases.append(keyed("interpolate mean", [step], ["x"], lambda: InterpolateMean(5), rows(0.4)))
    step = {"kernel": "interpolate", "field": "x", "method": "linear"}
    cases.append(keyed("interpolate linear", [step], ["x"], InterpolateLinear, rows(0.4)))
    for window, ahead in [(2, 1.0), (10, 5.5)]:
        step = {"kernel": "sliding-regression", "field": "x", "window": window, "ahead": ahead,
                "trend": "a", "prediction": "b"}
        cases.append(keyed(f"sliding-regression {window}", [step], ["a", "b"], lambda: Regression(window, ahead), rows()))
    points = [(now, k, x) for now, k, x in rows(0.1)]
    case = keyed("sliding-regression by time", [], [], lambda: Regression(8, 60.0, True),
                 [(now // 1_000_000 * 1_000_000, k, x) for now, k, x in points])
    step = {"kernel": "sliding-regression", "field": "x", "window": 8, "ahead": 60, "time": "t",
            "trend": "a", "prediction": "b"}
    case["spec"] = spec([step], ["a", "b"], ["k:text", {"name": "t", "type": "time", "unit": "ms"},
                                             {"name": "x", "optional": True}])
    case["messages"] = [[7, "a", f"{body.split(',')[0]},{now // 1_000_000},{body.split(',')[1]}"]
                        for now, _, body in case["messages"]]
    case["tolerance"] = 1e-6  # a float of seconds since 1970 is good to 0.2 µs
    cases.append(case)
    for precision in [4, 5, 6, 10]:
        values = [(EPOCH, f"k{i % 2}", float(random.randrange(1 + i))) for i in range(300)]
        step = {"kernel": "distinct-count", "field": "x", "into": "y", "precision": precision}
        cases.append(keyed(f"distinct-count {precision}", [step], ["y"], lambda: Distinct(precision), values))
    names = [(EPOCH, "k", f"device-{random.randrange(3000)}-{'x' * random.randrange(12)}") for _ in range(300)]
    case = keyed("distinct-count of text", [], [], lambda: Distinct(8), names)
    step = {"kernel": "distinct-count", "field": "s", "into": "y", "precision": 8}
    case["spec"] = spec([step], ["y"], ["k:text", "s:text"])
    cases.append(case)
    for averages, groups in [(1, 1), (32, 5), (64, 3)]:
        values = [(EPOCH, f"k{i % 2}", float(int(random.expovariate(0.3)))) for i in range(120)]
        step = {"kernel": "second-order-moment", "field": "x", "into": "y", "averages": averages, "groups": groups}
        cases.append(keyed(f"second-order-moment {averages} {groups}", [step], ["y"],
                           lambda: Moment(averages, groups), values))
    for limits in [{"above": 10.0}, {"below": -5.0, "hysteresis": 4.0}, {"above": 10.0, "below": -10.0, "hysteresis": 2.5}]:
        for fires in ["every", "rise", "fall", "change"]:
            step = {"kernel": "threshold", "field": "x", "into": "y", "fires": fires, **limits}
            cases.append(keyed(f"threshold {limits} {fires}", [step], ["y"],
                               lambda: Threshold(fires=fires, **limits), rows()))
    cases += filters(random) + predictions(random)
    cases.append(above_average(random))
    return cases + gathered(random)


def above_average(random):
    """The anomaly of the example: range, Kalman, average of its estimates, threshold relative to it."""
    states, messages, expected = {}, [], []
    for now, key, x in series(random, 400, 5):
        messages.append([now, "a", f"{key},{text(x)}"])
        if not -40 <= x <= 60:
            expected.append(None)
            continue
        kalman, average = states.setdefault(key, (Kalman(0.125, 0.32, 30.0), Running("average")))
        estimate = kalman.step(x, now)[0]
        mean = average.step(estimate, now)[0]
        expected.append([estimate, mean, 1.0 if x - mean > 4 else 0.0])
    steps = [
        {"kernel": "range-filter", "field": "x", "min": -40, "max": 60},
        {"kernel": "kalman", "field": "x"},
        {"kernel": "average", "field": "x_kalman", "into": "mean"},
        {"kernel": "threshold", "field": "x", "reference": "mean", "above": 4, "into": "over"},
    ]
    return {"name": "above average", "spec": spec(steps, ["x_kalman", "mean", "over"]),
            "messages": messages, "expected": expected}


def gathered(random):
    """Keys by the topic: what devices send gathers under the levels that their topics have in common, and is published there."""
    parents = ["plant/a", "plant/b", "hall/a", "plant/", "/a", "wärme/日本", "x" * 60 + "/a"]
    # Without a level that keys need, or longer than a key may be.
    odd = ["plant", "hall", "a" * 129 + "/a/d0"]

    def rows():
        now, values = EPOCH, {}
        for _ in range(120):
            now += random.choice([0, 1, 100_000_000, 700_000_000, 3 * SECOND])
            topic = f"{random.choice(parents)}/d{random.randrange(3)}{random.choice(['', '', '/t', '/t/raw'])}"
            if random.random() < 0.1:
                topic = random.choice(odd)
            values[topic] = values.get(topic, random.uniform(-50, 50)) + random.gauss(0, 3)
            yield now, topic, None if random.random() < 0.1 else round(values[topic], random.choice([0, 1, 3]))

    def of(key, topic):
        """The text that state is kept under; none if the topic has none."""
        if key == "none":
            return ""
        levels = topic.split("/")
        if key != "topic" and max(key["levels"]) >= len(levels):
            return None
        found = topic if key == "topic" else "/".join(levels[level] for level in key["levels"])
        return found if len(found.encode()) <= 128 else None

    def case(name, key, step, make, value_of=lambda topic, x: x):
        states, messages, expected, topics, bad = {}, [], [], [], 0
        for now, topic, x in rows():
            messages.append([now, topic, f"d,{text(x)}"])
            found = of(key, topic)
            if found is None:
                bad += 1
                expected.append(None)
                topics.append(None)
                continue
            expected.append(states.setdefault(found, make()).step(value_of(topic, x), now))
            topics.append("out" if key == "none" else f"out/{found}")
        described = spec([{**step, "into": "y"}], ["y"], key=key)
        place = {"none": "out", "topic": "out/{topic}"}
        described["step"][-1]["topic"] = place[key] if isinstance(key, str) else "/".join(
            ["out"] + [f"{{level:{level}}}" for level in key["levels"]])
        by = key if isinstance(key, str) else "levels " + " ".join(map(str, key["levels"]))
        return {"name": f"{name} by {by}", "spec": described, "messages": messages, "expected": expected,
                "topics": topics, "bad": bad}

    levels = lambda *numbers: {"levels": list(numbers)}
    windows = [
        ("average running", None, lambda: Running("average")),
        ("average sliding 7", {"sliding": 7}, lambda: SlidingCount("average", 7)),
        ("max tumbling 5 held", {"tumbling": 5, "hold": True}, lambda: TumblingCount("max", 5, True)),
        ("average tumbling 10s", {"tumbling": "10s"}, lambda: TumblingTime("average", 10 * SECOND)),
        ("min sliding 30s", {"sliding": "30s", "panes": 5}, lambda: SlidingTime("min", 30 * SECOND, 5)),
    ]
    cases = []
    for name, window, make in windows:
        step = {"kernel": name.split()[0], "field": "x", **({"window": window} if window else {})}
        cases.append(case(name, levels(0, 1), step, make))
    step = {"kernel": "average", "field": "x", "window": {"tumbling": "10s", "hold": True}}
    for key in [levels(0), levels(1), levels(1, 2), levels(0, 2), levels(2, 0), levels(3), "topic", "none"]:
        cases.append(case("average tumbling 10s held", key, step, lambda: TumblingTime("average", 10 * SECOND, True)))
    # How many messages each parent had in a while, whatever is in them, and how many topics it has.
    cases.append(case("count of messages", levels(0, 1), {"kernel": "count", "window": {"sliding": "30s", "panes": 5}},
                      lambda: SlidingTime("count", 30 * SECOND, 5), lambda topic, x: 1.0))
    cases.append(case("distinct-count of topics", levels(0), {"kernel": "distinct-count", "precision": 8},
                      lambda: Distinct(8), lambda topic, x: topic))
    return cases


def filters(random):
    cases = []
    rows = series(random, 200, 4, 0.1)
    messages = [[now, "a/b", f"{key},{text(x)}"] for now, key, x in rows]
    for low, high, keep in [(-10.0, 10.0, False), (None, 0.0, True), (5.0, None, False)]:
        step = {"kernel": "range-filter", "field": "x", "keep_missing": keep}
        step.update({k: v for k, v in [("min", low), ("max", high)] if v is not None})
        inside = lambda x: keep if x is None else (low is None or x >= low) and (high is None or x <= high)
        cases.append({"name": f"range-filter {low} {high}", "spec": spec([step], ["x"]), "messages": messages,
                      "expected": [[x] if inside(x) else None for _, _, x in rows]})
    members = [f"device-{i}" for i in range(50)]
    seen = [f"device-{random.randrange(200)}" for _ in range(200)]
    for share in [0.5, 0.05, 0.001]:
        bloom = Bloom(50, share, members, False, "known")
        step = {"kernel": "bloom-filter", "field": "k", "members": "devices", "false_positive": share}
        cases.append({"name": f"bloom-filter {share}", "spec": spec([step], ["k"]), "sets": {"devices": "\n".join(members)},
                      "messages": [[EPOCH, "a", f"{name},1"] for name in seen],
                      "expected": [[name] if bloom.keeps(name) else None for name in seen]})
    bloom = Bloom(60, 0.02, [], True, "new")
    values = [float(random.randrange(100)) for _ in range(200)]
    step = {"kernel": "bloom-filter", "field": "x", "expected": 60, "false_positive": 0.02, "learn": True, "keep": "new"}
    cases.append({"name": "bloom-filter learns", "spec": spec([step], ["x"]),
                  "messages": [[EPOCH, "a", f"k,{text(x)}"] for x in values],
                  "expected": [[x] if bloom.keeps(x) else None for x in values]})
    for invert in [False, True]:
        step = {"kernel": "string-match", "field": "k", "equals": ["k1"], "starts_with": ["device-1"],
                "ends_with": ["7"], "contains": ["ice-2"], "invert": invert}
        match = lambda k: (k == "k1" or k.startswith("device-1") or k.endswith("7") or "ice-2" in k) != invert
        names = seen[:100] + ["k1", "k", ""]
        # The empty text is missing, which makes its message bad.
        cases.append({"name": f"string-match {invert}", "spec": spec([step], ["k"], key="none"), "bad": 1,
                      "messages": [[EPOCH, "a", f"{name},1"] for name in names],
                      "expected": [[name] if name and match(name) else None for name in names]})
    table = {f"device-{i}": (f"street {i % 7}, \"{i}\"", i * 1.5) for i in range(0, 200, 2)}
    quoted = lambda s: '"' + s.replace('"', '""') + '"'
    csv = "id,place,height\n" + "".join(f"{k},{quoted(p)},{h}\n" for k, (p, h) in table.items())
    for keep in [True, False]:
        step = {"kernel": "annotate", "table": "places", "field": "k", "numbers": ["height"], "texts": ["place"],
                "keep_missing": keep}
        expected = [[table[n][0], table[n][1]] if n in table else [None, None] if keep else None for n in seen]
        cases.append({"name": f"annotate {keep}", "spec": spec([step], ["place", "height"]), "tables": {"places": csv},
                      "messages": [[EPOCH, "a", f"{n},1"] for n in seen], "expected": expected})
    return cases


def predictions(random):
    fields = ["k:text"] + [{"name": n, "optional": True} for n in "abcd"]
    rows = [[None if random.random() < 0.05 else round(random.uniform(-9, 9), 3) for _ in range(4)] for _ in range(200)]
    messages = [[EPOCH, "a", "k," + ",".join(text(v) for v in row)] for row in rows]
    linear = {"tidegate_model": 1, "kind": "linear", "target": "y", "intercept": -0.7,
              "coefficients": {"a": 2.5, "c": -1e-3, "d": 0.3333333333333333}}
    line = lambda a, b, c, d: None if None in (a, c, d) else -0.7 + 2.5 * a - 1e-3 * c + 0.3333333333333333 * d
    nodes = [
        {"feature": 1, "threshold": 0.5, "left": 1, "right": 4},
        {"feature": 0, "threshold": -2.25, "left": 2, "right": 3},
        {"class": 0}, {"class": 2},
        {"feature": 0, "threshold": 3.0, "left": 5, "right": 6},
        {"class": 1}, {"class": 0},
    ]
    tree = {"tidegate_model": 1, "kind": "tree", "target": "y", "features": ["b", "d"],
            "classes": ["low", "middle", "high"], "nodes": nodes}

    def classify(b, d):
        if d is None:
            return None
        if d <= 0.5:
            return None if b is None else "low" if b <= -2.25 else "high"
        return None if b is None else "middle" if b <= 3.0 else "low"

    def error(a, b, c, d):
        y = line(a, b, c, d)
        return None if y is None or b is None or not b or d is None else (a - y) / b

    return [
        {"name": "linear-regression", "models": {"m": linear}, "messages": messages,
         "spec": spec([{"kernel": "linear-regression", "model": "m"}], ["y_prediction"], fields),
         "expected": [[line(*row)] for row in rows]},
        {"name": "decision-tree", "models": {"m": tree}, "messages": messages,
         "spec": spec([{"kernel": "decision-tree", "model": "m"}], ["y_class"], fields),
         "expected": [[classify(row[1], row[3])] for row in rows]},
        {"name": "error-estimate", "models": {"m": linear}, "messages": messages,
         "spec": spec([{"kernel": "linear-regression", "model": "m"},
                       {"kernel": "error-estimate", "observed": "a", "predicted": "y_prediction", "average": "b"}],
                      ["a_error"], fields),
         "expected": [[error(*row)] for row in rows]},
    ]


# Formats: payloads are written here and read by flows.

def cbor(value):
    def head(major, n):
        for info, size in [(24, 1), (25, 2), (26, 4), (27, 8)]:
            if n < 24:
                return bytes([major << 5 | n])
            if n < 1 << 8 * size:
                return bytes([major << 5 | info]) + n.to_bytes(size, "big")
        raise ValueError(n)
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, float):
        for form, lead in [(">e", 0xF9), (">f", 0xFA)]:
            try:
                packed = struct.pack(form, value)
            except OverflowError:
                continue
            if struct.unpack(form, packed)[0] == value:
                return bytes([lead]) + packed
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(cbor, value))
    return head(5, len(value)) + b"".join(cbor(k) + cbor(v) for k, v in value.items())


def formats(random):
    cases = []

    def case(name, parse, payloads, expected, outputs=("s", "x", "n", "t")):
        fields = parse.pop("fields", None) or ["s:text", "x", "n:integer", {"name": "t", "type": "time", **parse.pop("time", {})}]
        cases.append({
            "name": name,
            "spec": {"topics": ["#"], "parse": {"fields": fields, **parse},
                     "step": [{"kernel": "notify", "topic": "out", "fields": list(outputs)}]},
            "messages": [[EPOCH, "a", p if isinstance(p, str) else {"hex": p.hex()}] for p in payloads],
            "expected": expected,
        })

    rows = []
    for _ in range(60):
        s = random.choice(["abc", "é, \"ü\"", "line\nbreak", "\\", "x y", "日本"]) + str(random.randrange(100))
        x = random.choice([random.uniform(-1e3, 1e3), round(random.uniform(-99, 99), 2), 1e300, -5e-324, 0.0])
        rows.append([s, x, random.randrange(-(1 << 53), 1 << 53), 1_600_000_000 + random.randrange(10**8) / 8])
    plain = [[s, x, float(n), t] for s, x, n, t in rows]
    quoted = lambda s: '"' + s.replace('"', '""') + '"'
    millis = lambda t: repr(t * 1000)
    case("csv", {"format": "csv", "time": {"unit": "ms"}},
         [f"{quoted(s)},{x!r},{n},{millis(t)}" for s, x, n, t in rows], plain)
    orders, payloads = [["s", "x", "n", "t"], ["t", "more", "n", "x", "s"], ["x", "s", "t", "n", "more", "most"]], []
    for s, x, n, t in rows:
        values = {"s": quoted(s), "x": repr(x), "n": str(n), "t": repr(t), "more": "?", "most": '""'}
        order = random.choice(orders)
        payloads.append(";".join(order) + "\n" + ";".join(values[name] for name in order) + "\r\n")
    case("csv with a header, reordered", {"format": "csv", "header": True, "delimiter": ";"}, payloads, plain)
    stamp = lambda t: (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=t)).astimezone(
        timezone(timedelta(minutes=random.choice([0, 90, -300])))).isoformat()
    case("json", {"format": "json"},
         [json.dumps(dict(random.sample([("x", x), ("t", stamp(t)), ("s", s), ("n", n), ("z", [1, {"x": 2}]), ("y", None)], 6)),
                     ensure_ascii=random.random() < 0.5) for s, x, n, t in rows], plain)
    riot = []
    for s, x, n, t in rows:
        entries = [{"u": "string", "n": "s", "sv": s}, {"v": repr(x), "u": "far", "n": "x"},
                   {"v": str(n), "n": "n"}, {"n": "other", "sv": "?"}]
        random.shuffle(entries)
        pack = [("e", entries), ("bt", t * 1000)]
        riot.append(json.dumps(dict(random.sample(pack, 2)), ensure_ascii=False))
    time = {"name": "t", "type": "time", "from": "@time", "unit": "ms"}
    case("senml with values as text", {"format": "senml-json", "fields": ["s:text", "x", "n:integer", time]}, riot, plain)
    time = {"name": "t", "type": "time", "from": "@time"}
    named = [{"name": "s", "type": "text", "from": "urn:dev:7:s"}, {"name": "x", "from": "urn:dev:7:x"},
             {"name": "n", "type": "integer", "from": "urn:dev:7:n"}, time]
    packs = []
    for s, x, n, t in rows:
        base = random.choice([0, 0, 1000])
        n = min(n, (1 << 53) - 1000)
        packs.append([{"bn": "urn:dev:7:", "bt": t - 0.5, "n": "s", "vs": s, "u": "?"},
                      {"n": "x", "v": x}, {"bv": base, "n": "n", "v": n - base, "t": 0.5}, {"n": "unknown", "vb": True}])
    expected = [[s, x, float(min(n, (1 << 53) - 1000)), t] for s, x, n, t in rows]
    case("senml-json", {"format": "senml-json", "fields": named}, [json.dumps(p) for p in packs],
         [[s, x, n, t] for s, x, n, t in expected])
    labels = {"bn": -2, "bt": -3, "bv": -5, "n": 0, "u": 1, "v": 2, "vs": 3, "vb": 4, "t": 6}
    case("senml-cbor", {"format": "senml-cbor", "fields": named},
         [cbor([{labels[k]: v for k, v in record.items()} for record in p]) for p in packs], expected)
    case("cbor", {"format": "cbor"},
         [cbor(dict(random.sample([("x", x), ("t", t), ("s", s), ("n", n), ("z", [1, {"x": [2.5]}]), (7, None)], 6)))
          for s, x, n, t in rows], plain)
    layout = [
        {"name": "a", "at": 0, "as": "i16be"}, {"name": "b", "at": 2, "as": "u32le", "scale": 0.25},
        {"name": "c", "at": 6, "as": "f32be"}, {"name": "d", "at": 10, "as": "f64le"}, {"name": "e", "at": 18, "as": "i8"},
        {"name": "f", "at": 19, "as": "i64be", "type": "integer"}, {"name": "g", "at": 27, "length": 8},
        {"name": "h", "at": 35, "length": 6, "type": "text"},
    ]
    payloads, expected = [], []
    for _ in range(60):
        a, b, e = random.randrange(-(1 << 15), 1 << 15), random.randrange(1 << 32), random.randrange(-128, 128)
        c = struct.unpack(">f", struct.pack(">f", random.uniform(-1e6, 1e6)))[0]
        d, f, g = random.uniform(-1, 1), random.randrange(-(1 << 53), 1 << 53), round(random.uniform(-999, 999), 3)
        h = random.choice(["ab", "abcdef", "é"])
        payloads.append(struct.pack(">h", a) + struct.pack("<I", b) + struct.pack(">f", c) + struct.pack("<d", d)
                        + struct.pack("b", e) + struct.pack(">q", f) + f"{g:>8}".encode() + h.encode().ljust(6) + b"rest")
        expected.append([float(a), b * 0.25, c, d, float(e), float(f), g, h])
    case("fixed", {"format": "fixed", "fields": layout}, payloads, expected, "abcdefgh")
    return cases


def numbers(random):
    texts = ["0", "-0", "007", "1.10", "+5", ".5", "5.", "1e308", "1e-400", "1e309", "-1e309", "NaN", "nan", "inf", "-inf",
             "Infinity", "0x10", "1_000", "1,5", "", "-", ".", "e5", "1e", "1e+", "--1", "1.2.3", "5e-324", "2.2250738585072014e-308",
             "9007199254740993", "123456789012345", "1234567890123456", "0.1000000000000000055511151231257827",
             "1234567890123456789012345678901234567890", "0." + "0" * 30 + "1", "9" * 40]
    for _ in range(500):
        value = struct.unpack("<d", random.randbytes(8))[0]
        texts += [repr(value), f"{random.uniform(-1e4, 1e4):.{random.randrange(12)}f}", str(random.randrange(10**random.randrange(1, 25)))]
    plain = set("0123456789+-.eE")
    out = []
    for t in texts:
        try:
            value = float(t) if t and set(t) <= plain else None
        except ValueError:
            value = None
        is_number = value is not None and math.isfinite(value)
        out.append([t, str(struct.unpack("<Q", struct.pack("<d", value))[0]) if is_number else None])
    return out


def hashes(random):
    """Seed, text or number, its hash as a value that is counted, and as a key's text; whole numbers of 64 bits as text."""
    cases = []
    for seed in [0, 1, 1 << 63, MASK, *(random.getrandbits(64) for _ in range(8))]:
        alphabet = "abcXYZ019/-é日"
        texts = ["", "a", "abcdefg", "abcdefgh", "abcdefghi", "0" * 16, *(
            "".join(random.choice(alphabet) for _ in range(random.randrange(48))) for _ in range(6))]
        for t in texts:
            data = t.encode()
            value = hash_secretly(seed, data) if seed else hash_bytes(0, data)
            cases.append([str(seed), t, str(value), str(hash_secretly(seed, data))])
        for x in [0.0, 1.0, -2.5, 1e300, round(random.uniform(-1e6, 1e6), 3)]:
            cases.append([str(seed), x, str(hash_bytes(seed, struct.pack("<d", x))), None])
    return cases


# Training: least squares by the normal equations in exact fractions, trees by trying every split.

def solve(matrix, right):
    n = len(matrix)
    rows = [row[:] + [value] for row, value in zip(matrix, right)]
    for pivot in range(n):
        best = next(r for r in range(pivot, n) if rows[r][pivot])
        rows[pivot], rows[best] = rows[best], rows[pivot]
        for r in range(n):
            if r != pivot:
                factor = rows[r][pivot] / rows[pivot][pivot]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[pivot])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def least_squares(examples, targets):
    design = [[Fraction(1)] + [Fraction(x) for x in row] for row in examples]
    n = len(design[0])
    normal = [[sum(row[i] * row[j] for row in design) for j in range(n)] for i in range(n)]
    right = [sum(row[i] * Fraction(y) for row, y in zip(design, targets)) for i in range(n)]
    return [float(c) for c in solve(normal, right)]


def gini(labels):
    return 1 - sum(Fraction(labels.count(c), len(labels)) ** 2 for c in set(labels)) if labels else Fraction(0)


def grow(examples, labels, classes, depth, leaf):
    counts = [labels.count(c) for c in classes]
    majority = {"class": counts.index(max(counts))}
    if depth == 0 or max(counts) == len(labels):
        return majority
    best, n = None, len(labels)
    for feature in range(len(examples[0])):
        values = sorted({row[feature] for row in examples})
        for low, high in zip(values, values[1:]):
            threshold = low / 2 + high / 2
            left = [l for row, l in zip(examples, labels) if row[feature] <= threshold]
            right = [l for row, l in zip(examples, labels) if row[feature] > threshold]
            if min(len(left), len(right)) < leaf:
                continue
            impurity = (len(left) * gini(left) + len(right) * gini(right)) / n
            if best is None or impurity < best[0]:
                best = (impurity, feature, threshold)
    if best is None or best[0] >= gini(labels):
        return majority
    _, feature, threshold = best
    sides = []
    for side in [True, False]:
        part = [(row, l) for row, l in zip(examples, labels) if (row[feature] <= threshold) == side]
        sides.append(grow([r for r, _ in part], [l for _, l in part], classes, depth - 1, leaf))
    return {"feature": feature, "threshold": threshold, "left": sides[0], "right": sides[1]}


def flatten(tree, nodes):
    at = len(nodes)
    nodes.append(dict(tree))
    if "feature" in tree:
        nodes[at]["left"] = flatten(tree["left"], nodes)
        nodes[at]["right"] = flatten(tree["right"], nodes)
    return at


def training(random):
    cases = []
    for count, rows in [(1, 10), (3, 60), (6, 200)]:
        true = [random.uniform(-5, 5) for _ in range(count + 1)]
        shifts = [random.choice([0, 1000, -1e5]) for _ in range(count)]
        examples = [[round(random.gauss(s, 3), 3) for s in shifts] for _ in range(rows)]
        targets = [round(true[0] + sum(c * x for c, x in zip(true[1:], row)) + random.gauss(0, 0.5), 4) for row in examples]
        names = [f"f{i}" for i in range(count)]
        csv = ",".join(names + ["y"]) + "\n" + "".join(",".join(map(repr, row + [y])) + "\n" for row, y in zip(examples, targets))
        solution = least_squares([[Fraction(repr(x)) for x in row] for row in examples], [Fraction(repr(y)) for y in targets])
        cases.append({"kind": "linear", "csv": csv, "features": names, "target": "y",
                      "intercept": solution[0], "coefficients": dict(zip(names, solution[1:]))})
    for depth, leaf, rows in [(1, 1, 30), (3, 5, 120), (6, 2, 150)]:
        examples = [[round(random.uniform(0, 10), 1) for _ in range(3)] for _ in range(rows)]
        label = lambda r: "hot" if r[0] + random.gauss(0, 1) > 6 else "wet" if r[1] > 5 and r[2] < 7 else "calm"
        labels = [label(row) for row in examples]
        names, classes = ["a", "b", "c"], sorted(set(labels))
        csv = "a,b,c,class\n" + "".join(",".join(map(repr, row)) + f",{l}\n" for row, l in zip(examples, labels))
        nodes = []
        flatten(grow(examples, labels, classes, depth, leaf), nodes)
        cases.append({"kind": "tree", "csv": csv, "features": names, "target": "class", "depth_max": depth,
                      "leaf_rows_min": leaf, "classes": classes, "nodes": nodes})
    return cases


def main():
    folder = Path(sys.argv[1])
    for name, make in [("kernels", kernels), ("formats", formats), ("numbers", numbers), ("hashes", hashes),
                       ("training", training)]:
        cases = make(random.Random(f"tidegate {name}"))
        lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
