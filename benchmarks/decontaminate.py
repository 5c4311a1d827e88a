"""How long it takes to find evaluation items in training texts: 100,000 texts of about 45 words against 2,000 items, of
which some are planted. Prints one table, then a line per target.

    .venv/bin/python benchmarks/decontaminate.py [--train 100000] [--items 2000]

Texts are drawn from the words of a small story book by seed, with sentences shared between texts as word problems share
theirs, so that the n-gram comparisons have work to do. One process, one core; memory is the peak of the process.
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_core.data.decontaminate import overlap

SECONDS, MEGABYTES = 60.0, 1000.0
NAMES = ["Ada", "Bela", "Chen", "Dora", "Emil", "Fatma", "Goran", "Hana", "Ivo", "June"]
THINGS = ["apples", "tickets", "bolts", "pages", "clips", "coins", "stamps", "bottles", "chairs", "tiles"]
SENTENCES = [
    "{name} has {a} {thing} and buys {b} more {thing} at the market on the way home.",
    "Every week {name} sells {a} of the {thing} to friends and keeps the other {b} in a box.",
    "A shop offers {thing} at {a} dollars each, and {b} dollars off for every second one.",
    "In the morning {name} counts {a} {thing}, and in the evening only {b} of them are left.",
    "{name} shares {a} {thing} equally among {b} children of the class next door.",
    "The distance to the town is {a} miles, and {name} walks {b} miles every hour without a rest.",
    "On the shelf there are {a} rows of {b} {thing} each, and some of them are broken.",
    "{name} reads {a} pages on the first day and {b} pages more on each day that follows.",
]
QUESTIONS = ["How many {thing} are there in all?", "How many {thing} does {name} have now?", "How much is left?"]


def text(rng: random.Random) -> str:
    words = {"name": rng.choice(NAMES), "thing": rng.choice(THINGS)}
    said = [one.format(a=rng.randint(2, 999), b=rng.randint(2, 99), **words) for one in rng.sample(SENTENCES, 3)]
    return " ".join([*said, rng.choice(QUESTIONS).format(**words)])


def train_texts(count: int, planted: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    rng = random.Random(1)
    every = max(1, count // max(1, len(planted)))
    for number in range(count):
        if planted and number % every == every - 1:
            yield f"planted-{number}", planted[number // every % len(planted)][1].upper()
        else:
            yield f"train-{number}", text(rng)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--train", type=int, default=100_000)
    options.add_argument("--items", type=int, default=2_000)
    chosen = options.parse_args()
    rng = random.Random(2)
    items = [(f"item-{number}", text(rng)) for number in range(chosen.items)]
    planted = items[:: max(1, chosen.items // 100)]
    began, busy = time.perf_counter(), time.process_time()
    report = overlap(train_texts(chosen.train, planted), items)
    seconds, processor = time.perf_counter() - began, time.process_time() - busy
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    exact = {hit["id"] for hit in report["touched"] if "exact" in hit["by"]}
    missed = {name for name, _ in planted} - exact
    print(
        f"{'training texts':>14}  {'items':>7}  {'planted':>7}  {'found':>7}  {'seconds':>8}  {'CPU s':>8}  {'MB':>6}"
    )
    print(
        f"{chosen.train:>14,}  {chosen.items:>7,}  {len(planted):>7,}  {len(planted) - len(missed):>7,}"
        f"  {seconds:>8.1f}  {processor:>8.1f}  {megabytes:>6.0f}"
    )
    print(f"counts: {report['counts']}")
    for name, figure, target in (
        ("decontaminate_seconds", seconds, SECONDS),
        ("decontaminate_mb", megabytes, MEGABYTES),
        ("decontaminate_missed", float(len(missed)), 0.0),
    ):
        print(f"RESULT {name} {figure:.1f} {target:g} {'ok' if figure <= target else 'miss'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
