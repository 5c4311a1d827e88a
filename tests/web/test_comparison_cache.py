"""A run's statistics are computed once for all who look, and never shown once anything that went into them changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

import grpo_core.stats
from cohort.accounts.models import User
from cohort.evaluations import selectors
from cohort.evaluations.selectors import suites, suites_cached
from cohort.launch.creation import run_submit
from cohort.records.facts import collect
from cohort.records.sections.history_facts import comparisons
from cohort.runs.models import Attempt, ComparisonCache, EvalItem, EvalResult, Run
from grpo_core.config.run import RunConfig
from tests.factories.runs import UNPROBED, Maker, add_evaluation, gone_on, put_in
from tests.web.run_page import page_of, words

Row = dict[str, Any]


@pytest.fixture
def run(alice: User, maker: Maker) -> Run:
    """12 of 20 right before and 4 after; scores between 0 and 1 in another suite, for the bootstrap."""
    run = maker.run("adder")
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    attempt = maker.attempt(run, state="finished")
    for phase, right in (("before", 12), ("after", 4)):
        add_evaluation(attempt, phase, [1] * right + [0] * (20 - right), suite="heldout")
        add_evaluation(attempt, phase, [0.01 * right * n for n in range(8)], suite="graded")
    return run


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many suites were compared, each time that any were."""
    calls: list[int] = []
    compare_all = selectors.compare_all

    def counted(cases: Any) -> list[Row]:
        calls.append(len(cases))
        return compare_all(cases)

    monkeypatch.setattr(selectors, "compare_all", counted)
    return calls


def shown(run: Run) -> dict[str, Row]:
    run = Run.objects.get(pk=run.pk)
    return {suite.name: suite.compared for suite in suites_cached(run, RunConfig.from_whole(run.config))}


def right(run: Run) -> tuple[float, float]:
    rows = shown(run)["heldout"]
    return rows["before"]["correct"], rows["after"]["correct"]


def test_pages_of_any_process_compute_once(admin: Client, viewer: Client, run: Run, computed: list[int]) -> None:
    for client, *tab in ((viewer, "evaluations/"), (admin, "evaluations/"), (viewer,)):
        assert "−40.0 points regressed" in words(page_of(client, run, *tab))
    assert computed == [2], "the row serves whoever asks: nothing is held in this process"
    assert ComparisonCache.objects.get().run == run


def test_what_is_kept_is_to_the_bit_what_is_computed(run: Run, computed: list[int]) -> None:
    fresh = [suite.compared for suite in suites(run, RunConfig.from_whole(run.config))]
    for _ in range(2):
        assert repr([*shown(run).values()]) == repr(fresh)
    assert computed == [2, 2], "by `suites`, then once for all views"
    assert {suite["change"]["method"] for suite in fresh} == {"tango", "bootstrap"}


def test_an_evaluation_that_comes_later(maker: Maker, computed: list[int]) -> None:
    run = maker.run("late")
    attempt = maker.attempt(run)
    assert shown(run) == {}
    assert not ComparisonCache.objects.exists(), "nothing to keep"
    add_evaluation(attempt, "before", [1, 0], suite="heldout")
    assert shown(run)["heldout"]["after"] is None
    add_evaluation(attempt, "after", [1, 1], suite="heldout")
    assert right(run) == (1, 2)
    assert len(computed) == 2


def test_a_new_attempt_takes_the_place_of_the_old(maker: Maker, run: Run, computed: list[int]) -> None:
    """Gone on from step 1: another evaluation after training. From the first step: another one before it too."""
    assert right(run) == (12, 4)
    second = maker.attempt(run, state="finished")
    gone_on(second, 1)
    assert shown(run)["heldout"]["after"] is None, "superseded, and none has come yet"
    add_evaluation(second, "after", [1] * 15 + [0] * 5, suite="heldout")
    assert right(run) == (12, 15)
    third = maker.attempt(run, state="finished")
    gone_on(third, -1)
    for phase, count in (("before", 10), ("after", 11)):
        add_evaluation(third, phase, [1] * count + [0] * (20 - count), suite="heldout")
    assert right(run) == (10, 11)
    assert right(run) == (10, 11)
    assert len(computed) == 4


def _another_margin(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(config={**run.config, "eval": {**run.config["eval"], "margin": 0.2}})


def _another_item(run: Run) -> None:
    result = EvalResult.objects.get(run=run, suite="heldout", phase="after")
    item = EvalItem.objects.filter(run=run, suite="heldout", phase="after").latest("seq")
    EvalItem.objects.filter(pk=item.pk).update(seq=result.seq + 1000)
    EvalResult.objects.filter(pk=result.pk).update(seq=result.seq + 1001)
    item.pk, item.problem_id = None, "one more"
    item.save()


CHANGES: dict[str, Callable[[Run], object]] = {
    "margin": _another_margin,
    "items": _another_item,
    "score": lambda run: _items(run).update(score=0.5),
    "cut off": lambda run: _items(run).update(truncated=True),
    "error": lambda run: _items(run).update(error="raised"),
    "cluster": lambda run: EvalItem.objects.filter(run=run, problem_id__in=["held-0", "held-1"]).update(cluster="c"),
    "slice": lambda run: EvalItem.objects.filter(run=run, problem_id="held-0").update(slice="de"),
    "protocol": lambda run: EvalResult.objects.filter(run=run, phase="before").update(protocol={"seed": 1}),
    "training data": lambda run: Attempt.objects.filter(run=run).update(
        manifest={"data": {"overlap": {"heldout": {"touched": [{"id": "held-0"}]}}}}
    ),
}


def _items(run: Run) -> Any:
    return EvalItem.objects.filter(run=run, problem_id="held-0", phase="after")


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_goes_in_and_changes_is_computed_anew(run: Run, computed: list[int], what: str) -> None:
    before = shown(run)
    CHANGES[what](run)
    run.refresh_from_db()
    fresh = {suite.name: suite.compared for suite in suites(run, RunConfig.from_whole(run.config))}
    assert fresh != before, "the change is one that can be seen"
    assert shown(run) == fresh
    assert computed == [2, 2, 2], "the second time by `suites` itself"


@pytest.mark.parametrize("changed", ["stats/bootstrap.py", "compare.py", "items.py"])
def test_the_code_is_all_that_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str) -> None:
    code = selectors._code.__wrapped__
    now = code()
    shutil.copytree(Path(grpo_core.stats.__file__).parent, tmp_path / "stats")
    monkeypatch.setattr(grpo_core.stats, "__file__", str(tmp_path / "stats/__init__.py"))
    for module in (selectors.compare, selectors.items):
        shutil.copy(module.__file__, tmp_path)
        monkeypatch.setattr(module, "__file__", str(tmp_path / Path(module.__file__).name))
    assert code() == now, "where it lies is no matter"
    with (tmp_path / changed).open("a") as file:
        file.write("# more\n")
    assert code() != now


def test_runs_do_not_share_and_other_code_computes_anew(
    maker: Maker, run: Run, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = maker.run("other")
    add_evaluation(maker.attempt(other), "before", [1, 0, 0], suite="heldout")
    for _ in range(2):
        assert right(run) == (12, 4)
        assert shown(other)["heldout"]["before"]["correct"] == 1
    assert computed == [2, 1]
    monkeypatch.setattr(selectors, "_code", lambda: "of another version")
    shown(run)
    assert computed == [2, 1, 2]
    assert ComparisonCache.objects.count() == 2


def test_a_record_is_computed_from_the_items_alone(run: Run, viewer: Client) -> None:
    """Also where the row says something else, which a page would show."""
    shown(run)
    row = ComparisonCache.objects.get()
    rows = json.loads(row.comparisons)
    rows[1]["verdict"] = rows[0]["verdict"] = "made up"
    ComparisonCache.objects.update(comparisons=json.dumps(rows))
    assert "made up" in page_of(viewer, run, "evaluations/")
    put_in(run, "succeeded")
    sealed = collect(Run.objects.get(pk=run.pk), state="succeeded").comparisons
    assert sealed == comparisons(suites(run, RunConfig.from_whole(run.config)))
    assert {comparison.suite: comparison.verdict for comparison in sealed}["heldout"] == "regressed"
