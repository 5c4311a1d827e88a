"""Queries of review over a few hundred samples, drawn at random, against the same computed in Python."""

import random
from itertools import product

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.review.filters import SampleFilter
from cohort.review.models import Annotation, Sample
from cohort.review.queue_figures import differing, figures_of
from cohort.review.queues import queue_create
from cohort.runs.models import Run
from grpo_core.stats.agreement import cohen_kappa
from tests.factories.runs import Maker, add_group
from tests.web.run_page import page_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(maker: Maker) -> Run:
    """240 samples in 20 steps of 3 groups of 4."""
    chance = random.Random(5)
    run = maker.run("drawn", state="training")
    attempt = maker.attempt(run)
    for step, index in product(range(1, 21), range(3)):
        rewards = [round(chance.random(), 1) for _ in range(4)]
        add_group(attempt, rewards, step=step, index=index, advantages=[chance.choice((-1.5, 0.0, 1.5)) for _ in "four"])
    return run


def test_figures_of_a_queue_are_those_of_the_newest_verdicts(
    run: Run, alice: User, bob: User, rita: User, reviewer: Client
) -> None:
    """Three people judge, change their minds and take verdicts back."""
    chance, people = random.Random(1), [alice, bob, rita]
    made = {"name": "drawn", "samples": SampleFilter(), "size": 150, "order": "random", "reviewers": 2, "blind": False}
    queue = queue_create(run=run, actor=rita, **made)
    items = list(queue.items.order_by("number"))
    newest: dict[int, dict[int, str]] = {item.number: {} for item in items}
    for _ in range(500):
        item, by, verdict = chance.choice(items), chance.choice(people), chance.choice(["right", "wrong", "unsure", ""])
        Annotation.objects.create(sample_id=item.sample_id, by=by, queue=queue, verdict=verdict)
        newest[item.number][by.pk] = verdict
    judged = {number: [given[pk] for pk in sorted(given) if given[pk]] for number, given in newest.items()}
    pairs = {number: tuple(given) for number, given in judged.items() if len(given) == 2}
    differ = [number for number, (first, second) in sorted(pairs.items()) if first != second]
    figures = figures_of(queue)
    assert (figures.samples, figures.people) == (150, 3)
    assert figures.judged == sum(len(given) >= 2 for given in judged.values())
    assert figures.kappa == cohen_kappa(pair for pair in pairs.values() if "unsure" not in pair)
    assert figures.kappa_of_three == cohen_kappa(pairs.values())
    assert (figures.differ_on, [item.number for item in differing(queue)]) == (len(differ), differ)
    page = reviewer.get(f"/p/ours/queues/{queue.pk}/").content.decode()
    assert len(differ) > 20
    assert f"20 of {len(differ)} are shown" in page
