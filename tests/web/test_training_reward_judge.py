"""A held-out accuracy measured by the reward that trained says so, with what the newest probe of that reward measured:
in the list, the header, the evaluations and the record."""

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.lab.judged import TrainingRewardJudge, training_reward_judge, training_reward_judges
from cohort.launch.creation import run_create
from cohort.runs.models import Run
from cohort.runs.run_values import evaluation_values_store
from grpo_core.probe.report import ProbeReport
from tests.factories import lab
from tests.factories.runs import Maker, add_evaluation, put_in
from tests.web.pages import html
from tests.web.run_page import page_of, words

pytestmark = pytest.mark.django_db
NEVER = "by the training reward, never probed"


@pytest.fixture
def run(maker: Maker) -> Run:
    run = maker.run(state="succeeded", eval={"holdout": 4})
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "before", [1, 0, 0, 0], suite="heldout")
    add_evaluation(attempt, "after", [1, 1, 1, 0], suite="heldout")
    evaluation_values_store(run_id=run.pk)
    return run


def places(viewer: Client, run: Run) -> list[str]:
    listed = words(html(viewer.get("/p/ours/runs/")))
    return [listed, words(page_of(viewer, run)), words(page_of(viewer, run, "evaluations/"))]


def test_every_place_says_what_judged_and_what_its_probe_measured(viewer: Client, alice: User, run: Run) -> None:
    assert [NEVER in page for page in places(viewer, run)] == [True] * 3
    report = ProbeReport.from_json(lab.probed(run.verifier_version, alice).report)
    shares = report.false_positive
    text = f"by the training reward; probe: {shares.mistakes:,} of {shares.n:,} wrong answers rewarded"
    assert [text in page for page in places(viewer, run)] == [True] * 3
    judge = training_reward_judge(run)
    assert judge is not None
    assert (judge.text, judge.figures) == (text, {"wrong": shares.n, "paid": shares.mistakes})
    one = (run.verifier_version_id, run.dataset_id)
    assert training_reward_judges([one]) == {one: judge}


def test_a_probe_on_the_runs_dataset_counts_more_than_a_newer_one(alice: User, run: Run) -> None:
    own = lab.probed(run.verifier_version, alice, run.dataset)
    lab.probed(run.verifier_version, alice)
    shares = ProbeReport.from_json(own.report).false_positive
    one = (run.verifier_version_id, run.dataset_id)
    expected = TrainingRewardJudge(shares.n, shares.mistakes)
    assert training_reward_judge(run) == training_reward_judges([one])[one] == expected


def test_another_verifier_is_not_called_the_training_reward(viewer: Client, alice: User, maker: Maker) -> None:
    other = lab.format_only(maker.project, alice)
    run = run_create(**maker._named("apart"), eval_verifier_version=other, settings={"eval": {"holdout": 4}})
    put_in(run, "succeeded")
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "after", [1, 1, 1, 0], suite="heldout")
    evaluation_values_store(run_id=run.pk)
    assert training_reward_judge(run) is None
    assert not any(NEVER in page or "wrong answers rewarded" in page for page in places(viewer, run))
    assert all("form alone" in page for page in places(viewer, run))
