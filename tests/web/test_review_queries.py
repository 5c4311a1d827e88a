"""Queries of review over a few hundred samples, drawn at random, against the same computed in Python."""

import random
from dataclasses import astuple
from itertools import product
from typing import Any

import pytest
from django.core.paginator import Paginator
from django.http import QueryDict
from django.test import Client

from cohort.accounts.models import User
from cohort.lab.models import JobKind, LabJob
from cohort.review import rescored_set, words
from cohort.review.filters import SampleFilter
from cohort.review.models import Annotation, Change, Group, Rescore, RescoredSample, Sample
from cohort.review.problems import PAGE, Problems
from cohort.review.queue_figures import differing, figures_of
from cohort.review.queues import queue_create
from cohort.review.scatter import RIGHT, scatter
from cohort.review.word_index import words_index
from cohort.runs.models import Run
from cohort.web.review.samples import SamplePage
from grpo_core.stats.agreement import cohen_kappa
from tests.factories.runs import Maker, add_group

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(maker: Maker) -> Run:
    """240 samples in 20 steps of 3 groups of 4, of more problems than a page has."""
    chance = random.Random(5)
    run = maker.run("drawn", state="training")
    attempt = maker.attempt(run)
    for step, index in product(range(1, 21), range(3)):
        rewards = [round(chance.random(), 1) for _ in range(4)]
        advantages = [chance.choice((-1.5, 0.0, 1.5)) for _ in rewards]
        problem = f"p{chance.randrange(200)}"
        add_group(attempt, rewards, step=step, index=index, advantages=advantages, problem_id=problem)
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


def rescore_of(maker: Maker, run: Run, samples: list[Sample], seed: int) -> Rescore:
    """With rows of these samples, whose changes are drawn."""
    chance, version = random.Random(seed), maker.verifier_version
    job = LabJob.objects.create(
        project=run.project, kind=JobKind.RESCORE, version=version, spec={}, spec_digest="", created_by=maker.actor
    )
    made = {"run": run, "version": version, "job": job, "by": maker.actor, "newest_group": 0, "samples": len(samples)}
    rescore = Rescore.objects.create(**made, done=len(samples))
    for sample in samples:
        change, differs = chance.choice(Change.values), chance.random() < 0.4
        value = None if change == Change.UNSCORED and chance.random() < 0.5 else 0.5
        row = {"value": value, "phantom": False, "change": change, "differs": differs}
        RescoredSample.objects.create(rescore=rescore, sample=sample, **row)
    return rescore


def pages_of(run: Run, sort: str, rescore: str) -> list[int]:
    """Ids on the pages of the samples' table, one after the other."""
    ids: list[int] = []
    params = QueryDict(f"sort={sort}&rescore={rescore}", mutable=True)
    while True:
        page = SamplePage(run, SampleFilter.parse(params), params)
        ids += [row.sample.pk for row in page.rows]
        if not page.following:
            return ids
        params["after"] = page.following


@pytest.mark.parametrize("most_ids", [rescored_set.MOST_IDS, 1])
def test_samples_that_a_rescore_changed_are_on_their_pages_in_order(
    maker: Maker, run: Run, most_ids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bits and by a join; samples before the first and after the last of its rows, and another re-score's."""
    monkeypatch.setattr(rescored_set, "MOST_IDS", most_ids)
    samples = list(Sample.objects.filter(run=run).order_by("pk"))
    rescore = rescore_of(maker, run, samples[7:200], seed=most_ids)
    rescore_of(maker, run, samples, seed=2)
    rows: list[Any] = list(rescore.rows.select_related("sample").order_by("sample"))
    expected = {
        "differs": [row for row in rows if row.differs],
        "lower": [row for row in rows if row.change == Change.LOWER],
        "higher": [row for row in rows if row.change == Change.HIGHER],
        "unscored": [row for row in rows if row.change == Change.UNSCORED and row.value is None],
    }
    assert len(expected["differs"]) > 50
    for what, fitting in expected.items():
        by_reward = sorted(fitting, key=lambda row: (row.sample.reward, row.sample_id))
        assert pages_of(run, "reward", f"{rescore.pk}:{what}") == [row.sample_id for row in by_reward]
    other = maker.run("other", state="training")
    assert pages_of(other, "reward", f"{rescore.pk}:differs") == []


def test_samples_that_are_scored_meanwhile_are_there_at_once(maker: Maker, run: Run) -> None:
    samples = list(Sample.objects.filter(run=run).order_by("pk"))
    rescore = rescore_of(maker, run, [], seed=1)
    looked_for = f"{rescore.pk}:differs"
    assert pages_of(run, "step", looked_for) == []
    for done, place in enumerate((100, 3, 239), start=1):
        row = {"value": 1.0, "phantom": False, "change": Change.HIGHER, "differs": True}
        RescoredSample.objects.create(rescore=rescore, sample=samples[place], **row)
        Rescore.objects.filter(pk=rescore.pk).update(done=done)
        assert len(pages_of(run, "step", looked_for)) == done


def test_problems_are_listed_page_by_page_with_their_first_and_newest_group(run: Run) -> None:
    groups: dict[str, list[Group]] = {}
    for group in Group.objects.filter(run=run).order_by("step", "index"):
        groups.setdefault(group.problem_id, []).append(group)
    assert len(groups) > PAGE
    assert max(map(len, groups.values())) > 1

    def change(name: str) -> float | None:
        first, *_, newest = groups[name] * (1 if len(groups[name]) > 1 else 2)
        return None if first is newest else newest.reward_mean - first.reward_mean  # type: ignore[operator]

    orders: dict[str, Any] = {
        "id": lambda name: name,
        "-times": lambda name: (-len(groups[name]), name),
        "newest": lambda name: (groups[name][-1].reward_mean, name),
        "change": lambda name: (change(name) is None, change(name), name),
    }
    for sort, key in orders.items():
        problems = Paginator(Problems(run, sort), PAGE)
        listed = [problem for page in problems for problem in page.object_list]
        assert [problem.problem_id for problem in listed] == sorted(groups, key=key)
        for problem in listed:
            own = groups[problem.problem_id]
            assert (problem.times, problem.first_group, problem.newest_group) == (len(own), own[0].pk, own[-1].pk)


def test_the_grid_of_a_scatter_counts_as_python_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for sample in Sample.objects.filter(run=run):
        Sample.objects.filter(pk=sample.pk).update(tokens=sample.pk % 97)
    by_point = scatter(run, SampleFilter(), RIGHT)
    monkeypatch.setattr("cohort.review.scatter.MOST_POINTS", 10)
    by_grid = scatter(run, SampleFilter(), RIGHT)
    assert by_point is not None
    assert by_grid is not None
    assert (len(by_point.points), len(by_grid.points)) == (240, 0)
    assert sorted(map(astuple, by_grid.cells)) == sorted(map(astuple, by_point.cells))


BOUNDS = {
    "all at once": {},
    "few read": {"MOST_SAMPLES": 20, "MOST_READ": 15, "_AT_ONCE": 4},
    "by the index": {"MOST_SAMPLES": 30, "FIRST_LOOK": 14, "OFTEN": 14, "MOST_READ": 30},
    "step by step": {"FIRST_LOOK": 14, "OFTEN": 0, "MOST_LOOKED_AT": 30},
    "too many in the index": {"FIRST_LOOK": 14, "OFTEN": 14, "MANY": 10, "MOST_LOOKED_AT": 30, "MOST_SAMPLES": 25},
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS.keys())
def test_a_search_finds_what_python_finds_and_says_how_far_it_looked(
    run: Run, bounds: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps have 12 samples; `late` is in no early one. From where a search ended, the next one goes on."""
    for name, value in bounds.items():
        monkeypatch.setattr(words, name, value)
    chance = random.Random(9)
    for sample in Sample.objects.filter(run=run).order_by("pk"):
        some = [*chance.choices(["often", "one", "two", "rare"], [20, 9, 9, 1], k=6), *["late"] * (sample.step > 12)]
        Sample.objects.filter(pk=sample.pk).update(completion=" ".join(some))
    words_index()
    rows = list(Sample.objects.filter(run=run).order_by("step", "pk"))
    searches = {
        "often": lambda text: "often" in text,
        "one two": lambda text: "one" in text and "two" in text,
        "rare": lambda text: "rare" in text,
        "often -two": lambda text: "often" in text and "two" not in text,
        "-often": lambda text: "often" not in text,
        '"one two"': lambda text: "one two" in text,
        'often -"one two"': lambda text: "often" in text and "one two" not in text,
        "late": lambda text: "late" in text,
        "late -rare": lambda text: "late" in text and "rare" not in text,
        "nowhere": lambda text: False,
    }
    for text, fits in searches.items():
        expected = {row.pk: row.step for row in rows if fits(row.completion) and row.reward >= 0.2}
        seen: set[int] = set()
        least: int | None = 1
        while least is not None:
            looked_for = SampleFilter(text=text, step_min=least, reward_min=0.2, sort="step")
            matches = looked_for.text_matches(run)
            assert matches is not None
            pks = list(looked_for.ordered(run).values_list("pk", flat=True))
            assert set(pks) <= set(expected)
            through, since = matches.through, matches.since or least
            reached = {pk for pk, step in expected.items() if step >= since and (through is None or step < through)}
            assert reached <= set(pks), (text, least)
            seen |= set(pks)
            assert through is None or through > least
            least = through
        assert seen == set(expected), text
