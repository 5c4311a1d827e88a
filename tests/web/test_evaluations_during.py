"""Evaluations while training on the platform: what ingest takes, what a resume supersedes, the curve with its interval,
the best checkpoint in words; and a held-out verifier from the run form to page and record.
"""

import json
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.catalog.models import VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.evaluations.across_runs import results_across
from cohort.evaluations.during import best_shown, curves
from cohort.evaluations.selectors import suites_cached
from cohort.lab.gate import Gate
from cohort.launch.creation import run_launch
from cohort.records.facts import collect
from cohort.records.sections.behaviour import behaviour
from cohort.records.sections.subject import subject
from cohort.runs.models import Attempt, EvalItem, EvalResult, Run, RunValue
from cohort.runs.run_values import evaluation_values_store
from cohort.runs.transitions import current_evaluations
from cohort.web.launch.form import form_from_yaml
from cohort.web.launch.outlook import Outlook
from cohort.web.launch.run_form import RunForm
from grpo_core.records import types as records
from tests.factories.runs import UNPROBED, Maker, add_evaluation
from tests.factories.worker import envelopes, outcome, phase
from tests.web.batches import attempt, follow, resumed, run, saved, send  # noqa: F401  fixtures
from tests.web.form_page import as_browser, selected
from tests.web.pages import html
from tests.web.run_page import page_of, queries, words
from tests.web.test_ingest_agrees import refused

NEW = "/p/ours/runs/new/"
ASIDE: dict[str, Any] = {"truncated": 0, "errors": 0, "mean_tokens": 3.0, "seconds": 2.0, "protocol": {"seed": 0}}


def answered(number: int, scores: list[float], *, when: records.Phase = "during") -> list[Any]:
    """Of the held-out problems, after this step."""
    texts = {"prompt": "", "answer": "", "completion": ""}
    items = [
        records.EvalItem(
            phase=when,
            step=number,
            suite="heldout",
            problem_id=str(at),
            score=score,
            truncated=False,
            tokens=3,
            **texts,
        )
        for at, score in enumerate(scores)
    ]
    counted = {"problems": len(scores), "correct": sum(scores), **ASIDE}
    return [*items, records.EvalResult(phase=when, step=number, suite="heldout", **counted)]


def evaluated(number: int, score: float, low: float, high: float) -> records.StepMetrics:
    names = ("score", "low", "high")
    own = {f"eval/heldout/{name}": value for name, value in zip(names, (score, low, high), strict=True)}
    return records.StepMetrics(step=number, metrics={"reward": 0.5, **own}, seconds={"total": 1.0})


BEFORE = answered(0, [0, 0, 0, 0, 1], when="before")
FIRST = [evaluated(1, 0.4, 0.2, 0.7), *answered(1, [1, 1, 0, 0, 0])]
SECOND = [evaluated(2, 0.6, 0.3, 0.8), *answered(2, [1, 1, 1, 0, 0])]
BEGINNING = [phase("evaluating_before", 5), *BEFORE, phase("training", 9), saved(0)]


@pytest.fixture
def twice(attempt: Attempt) -> Attempt:  # noqa: F811
    """Evaluated before training and after two steps, of which the second is the best."""
    send(attempt, *envelopes([*BEGINNING, *FIRST, saved(1), *SECOND, saved(2, best=True)]))
    return attempt


def test_a_step_s_evaluation_is_stored_without_texts(twice: Attempt) -> None:
    stored = EvalResult.objects.order_by("seq").values_list("phase", "step", "correct")
    assert list(stored) == [("before", 0, 1.0), ("during", 1, 2.0), ("during", 2, 3.0)]
    assert set(EvalItem.objects.filter(phase="during").values_list("prompt", "completion")) == {("", "")}


def test_it_belongs_to_the_newest_step_and_comes_once(attempt: Attempt) -> None:  # noqa: F811
    send(attempt, *envelopes(BEGINNING))
    after = len(BEGINNING) + 1
    assert refused(attempt, *envelopes(FIRST[1:], first=after)).code == "other_step"
    send(attempt, *envelopes(FIRST, first=after))
    again = envelopes(FIRST[1:], first=after + len(FIRST))
    assert refused(attempt, *again).code == "result_before"
    wrong = [SECOND[0], *SECOND[1:-1], SECOND[-1].model_copy(update={"correct": 5.0})]
    assert refused(attempt, *envelopes(wrong, first=after + len(FIRST))).code == "other_sum"


def test_what_a_resume_takes_back_is_superseded(twice: Attempt, run: Run) -> None:  # noqa: F811
    send(follow(twice, run), *envelopes([resumed(1), phase("training", 9), *SECOND]))
    current = (
        current_evaluations(EvalResult.objects.all()).order_by("pk").values_list("phase", "step", "attempt__fence")
    )
    first, second = Attempt.objects.order_by("fence").values_list("fence", flat=True)
    assert list(current) == [("before", 0, first), ("during", 1, first), ("during", 2, second)]
    (curve,) = curves(run, run.parsed_config, suites_cached(run, run.parsed_config))
    assert [point.step for point in curve.points] == [0, 1, 2]


def test_the_page_draws_the_curve_and_marks_the_best(twice: Attempt, run: Run, viewer: Client) -> None:  # noqa: F811
    run.refresh_from_db()
    (curve,) = curves(run, run.parsed_config, suites_cached(run, run.parsed_config))
    assert [(point.step, point.score, point.best) for point in curve.points] == [
        (0, 0.2, False),
        (1, 0.4, False),
        (2, 0.6, True),
    ]
    page = page_of(viewer, run, "evaluations/")
    assert page.count("<circle") == 3
    assert "60.0 % [30.0 %, 80.0 %] after step 2" in words(page)
    shown = best_shown(run, run.parsed_config)
    assert shown is not None
    assert (shown.step, shown.by, shown.score) == (2, "held-out problems", 0.6)
    assert "best by held-out problems (★ 60.0 % at step 2)" in words(page_of(viewer, run, "attempts/"))
    assert "★ best step 2, by held-out problems (60.0 %)" in words(page_of(viewer, run))


def count(viewer: Client, address: str) -> int:
    """Queries of the page, once its statistics are kept."""
    viewer.get(address)
    return queries(lambda: viewer.get(address))


def test_more_evaluations_cost_no_more_queries(twice: Attempt, run: Run, viewer: Client) -> None:  # noqa: F811
    address = f"/p/ours/runs/{run.pk}/evaluations/"
    few = count(viewer, address)
    held = 1 + len(BEGINNING) + len(FIRST) + len(SECOND) + 2
    for number in range(3, 9):
        body = [evaluated(number, 0.6, 0.3, 0.8), *answered(number, [1, 1, 1, 0, 0])]
        send(twice, *envelopes(body, first=held))
        held += len(body)
    assert count(viewer, address) == few


def test_an_early_stop_is_a_success_that_says_so(twice: Attempt, run: Run) -> None:  # noqa: F811
    held = 1 + len(BEGINNING) + len(FIRST) + len(SECOND) + 2
    ended = outcome(code="early_stop", message="Stopped early after 2 of 50 steps").model_copy(
        update={"totals": dict.fromkeys(records._TOTALS, 0)}
    )
    send(twice, *envelopes([ended], first=held))
    run.refresh_from_db()
    answer = subject(collect(run, state="succeeded")).outcome
    assert answer.value["code"] == "early_stop"
    assert answer.value["steps_done"] == 2


# ---------------------------------------------------------------- a held-out verifier


@pytest.fixture
def judge(maker: Maker) -> VerifierVersion:
    spec = {"components": [{"name": "strict", "kind": "exact"}]}
    return verifier_version_create(project=maker.project, actor=maker.actor, name="strict judge", spec=spec)


def test_it_is_chosen_in_the_form_and_kept_by_every_way_in(
    operator: Client, chosen: dict[str, str], judge: VerifierVersion
) -> None:
    data = chosen | {"eval_verifier_version": str(judge.pk), "eval.every": "5", "eval.patience": "3"}
    operator.post(NEW, data | {"action": "draft"})
    made = Run.objects.get()
    assert made.eval_verifier_version == judge
    page = html(operator.get(f"/p/ours/rewards/{judge.verifier_id}/?version={judge.number}"))
    judged = page[page.index("held-out problems that this version judges") :]
    assert f'href="/p/ours/runs/{made.pk}/"' in judged
    assert made.parsed_config.heldout_reward.success_component == "strict"
    assert made.parsed_config.reward.success_component != "strict"
    copied = operator.post(NEW, data | {"action": "yaml"}).content.decode()
    for page in (
        html(operator.post(NEW, {"action": "import", "yaml": copied})),
        html(operator.get(NEW, {"clone": made.pk})),
    ):
        assert selected(page, "eval_verifier_version") == str(judge.pk)
        operator.post(NEW, as_browser(page) | {"action": "draft"})
        assert Run.objects.latest("pk").config_digest == made.config_digest


def test_one_that_the_project_lacks_is_named_at_its_field(maker: Maker) -> None:
    config = maker.run().parsed_config.to_dict()
    config["eval"]["reward"] = {"components": [{"name": "other", "kind": "numeric"}]}
    form = form_from_yaml(maker.project, json.dumps(config))
    assert set(form.problems) == {"eval_verifier_version"}


@pytest.mark.parametrize("own", [True, False])
def test_a_reward_that_was_found_wanting_calls_for_one(
    maker: Maker, chosen: dict[str, str], judge: VerifierVersion, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr(RunForm, "gate", Gate(None, "rejects_right", ()))
    texts = chosen | ({"eval_verifier_version": str(judge.pk)} if own else {})
    form = RunForm.posted(maker.project, texts)
    form.check()
    suggested = [check for check in Outlook(form).checks if "held-out verifier" in check.text]
    assert len(suggested) == (0 if own else 1)


def test_list_page_and_record_say_who_judged(maker: Maker, oscar: User, viewer: Client, judge: VerifierVersion) -> None:
    made = run_launch(
        **maker._named("judged"),
        eval_verifier_version=judge,
        settings={"eval": {"holdout": 5}},
        probe_override=UNPROBED,
    )
    for tab in ("", "evaluations/"):
        assert f"judged by {judge} , not by the training reward" in words(page_of(viewer, made, tab)), tab
    tried = maker.attempt(made)
    add_evaluation(tried, "before", [1, 0, 0, 0], suite="heldout")
    evaluation_values_store(run_id=made.pk)
    assert "25.0 % → – by strict judge v1" in words(html(viewer.get("/p/ours/runs/")))
    protocol = behaviour(collect(made, state="failed")).protocol
    assert protocol.value["judge"]["verifier"] == "strict judge"
    assert "reward" not in protocol.value
    assert "held-out problems judged by strict judge, version 1, not by the training reward" in protocol.text


def test_the_list_shows_the_newest_score_and_a_comparison_none_of_while_training(maker: Maker, viewer: Client) -> None:
    made = maker.run("scored", state="training", eval={"before": False, "holdout": 4})
    tried = maker.attempt(made)

    def newest() -> float | None:
        evaluation_values_store(run_id=made.pk)
        return RunValue.objects.get(run=made, key="evaluation.newest.heldout").number

    for step, scores in ((2, [1, 0, 0, 0]), (4, [1, 1, 0, 0])):
        result = add_evaluation(tried, "during", [], suite="heldout")
        EvalResult.objects.filter(pk=result.pk).update(step=step, problems=4, correct=sum(scores))
    assert newest() == 0.5
    assert results_across([made]) == {}
    assert viewer.get("/p/ours/runs/compare/", {"run": made.pk}).status_code == 200
    Attempt.objects.filter(pk=tried.pk).update(valid_through=3)
    assert newest() == 0.25, "a later attempt took step 4 again"
    Attempt.objects.filter(pk=tried.pk).update(valid_through=None)
    add_evaluation(tried, "before", [0, 0, 0, 0], suite="heldout")
    assert newest() == 0.5, "newer than the one before training"
    add_evaluation(tried, "after", [1, 1, 1, 0], suite="heldout")
    assert newest() == 0.75
