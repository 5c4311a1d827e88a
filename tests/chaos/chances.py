"""Chances that can be had again, and how much of a long test is done.

COHORT_CHAOS_SEED=… gives the same chances; each test prints the seed it ran with. COHORT_CHAOS_SCALE=0.1 does a tenth
of the rounds of the long tests, and one of each test's cases, by chance.
"""

import os
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

SEED = int(os.environ.get("COHORT_CHAOS_SEED") or random.SystemRandom().randrange(2**32))
SCALE = float(os.environ.get("COHORT_CHAOS_SCALE") or 1.0)
FULL = SCALE >= 1
LEASE = 4.0
"""Seconds, where no test needs another: what a lease decides is decided soon, and a busy machine keeps it."""


def rounds(full: int) -> int:
    """How many rounds of a full count to do."""
    return max(1, round(full * SCALE))


def short_and_full(short: int, full: int) -> list[Any]:
    """Values of a test's `count`: few rounds among the slow tests, and all among the chaos tests."""
    return [
        pytest.param(short, marks=pytest.mark.slow, id="short"),
        pytest.param(rounds(full), marks=pytest.mark.chaos, id="full"),
    ]


def most(seconds: float) -> float:
    """How long something may take that has so many seconds on a machine of its own, as the long tests' full form needs;
    others share theirs."""
    return seconds if FULL else 4 * seconds


def cases_of(name: str, cases: Sequence[Case]) -> list[Case]:
    """All cases of the test called `name`, or one."""
    return list(cases) if FULL else [random.Random(f"{SEED} {name}").choice(cases)]
