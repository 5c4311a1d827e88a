"""Margins of non-inferiority: at most 0.2 in every form; a run that was taken with a larger one is shown and sealed as
it was judged, and is not launched again."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuite
from cohort.catalog.run_inputs import ChosenSuite
from cohort.launch.creation import run_create, run_submit
from cohort.records.services import record_seal
from cohort.runs.models import Run
from cohort.runs.services import NotPossible, run_extend, run_resume, run_retry
from grpo_core.errors import ConfigError
from tests.factories import sealed_run
from tests.factories.runs import Maker, add_checkpoint, add_evaluation, put_in
from tests.factories.suites import ITEMS, add_suite, upload
from tests.web.form_page import note, value
from tests.web.run_page import page_of, words

NEW = "/p/ours/runs/new/"


def with_margin(run: Run, margin: float) -> None:
    """As an earlier Cohort stored it: for the held-out problems, and for each suite."""
    config: dict[str, Any] = run.config
    suites = [{**suite, "margin": margin} for suite in config["eval"]["suites"]]
    run.config = {**config, "eval": {**config["eval"], "margin": margin, "suites": suites}}
    run.save(update_fields=["config"])


@pytest.fixture
def draft(ours: Project, alice: User, maker: Maker) -> Run:
    """With the suite capitals, and margins of 100 points."""
    suites = [ChosenSuite(add_suite(ours, alice))]
    run = run_create(**maker._named("old"), settings={"eval": {"holdout": 4}}, suites=suites)
    with_margin(run, 1.0)
    return run


@pytest.fixture
def old(draft: Run, maker: Maker) -> Run:
    """Failed at step 1 after both evaluations, in which 6 of 20 answers of capitals were lost."""
    put_in(draft, "failed")
    attempt = maker.attempt(draft, state="failed")
    for phase, right in (("before", 20), ("after", 14)):
        add_evaluation(attempt, phase, [1] * right + [0] * (20 - right), suite="capitals")
    add_checkpoint(attempt, 1, stored=True)
    return draft


@pytest.mark.parametrize(("text", "taken"), [("0.2", True), ("0.21", False), ("5", False)])
def test_one_larger_than_20_points_is_taken_by_no_form(
    ours: Project, oscar: User, chosen: dict[str, str], text: str, taken: bool, operator: Client
) -> None:
    suite = add_suite(ours, oscar, name="planets")
    sent: dict[str, str] = {f"suite.{suite.pk}": "true", f"suite.{suite.pk}.margin": text}
    answers = [operator.post(NEW, {**chosen, **more, "action": "draft"}) for more in (sent, {"eval.margin": text})]
    answers.append(upload(operator, ("items.jsonl", ITEMS), margin=text))
    assert [answer.status_code for answer in answers] == [302 if taken else 422] * 3
    assert (Run.objects.count(), EvalSuite.objects.count()) == ((2, 2) if taken else (0, 1))
    if not taken:
        of_suite, of_all, of_upload = (answer.content.decode() for answer in answers)
        assert "at most 0.2 (20 points)" in note(of_suite, f"f-suite-{suite.pk}-margin")
        assert value(of_suite, f"suite.{suite.pk}.margin") == text
        assert "at most 0.2 (20 points)" in note(of_all, "f-eval-margin")
        assert "at most 0.2 (20 points)" in of_upload.split('id="id_margin_error"')[1][:300]


def test_an_old_run_is_shown_as_it_was_judged_and_its_clone_asks_for_another(operator: Client, old: Run) -> None:
    assert "worse within margin 100" in words(page_of(operator, old, "evaluations/"))
    for page in ("config/", "config.yaml"):
        assert "margin: 1.0" in page_of(operator, old, page)
    form = operator.get(NEW, {"clone": old.pk}).content.decode()
    assert value(form, "eval.margin") == "1"
    assert value(form, f"suite.{old.run_suites.get().version_id}.margin") == "1"


@pytest.mark.django_db
def test_an_old_run_is_sealed_as_it_was_judged(viewer: Client, launch: Callable[..., Run]) -> None:
    run = launch()
    with_margin(run, 1.0)
    document = json.loads(record_seal(run=sealed_run.finished(run)).document)
    assert [entry["margin"] for entry in document["sections"]["behaviour"]["performance"]["value"]] == [1]
    assert "margin 100" in words(page_of(viewer, run, "record/"))


def test_an_old_draft_is_not_launched(oscar: User, draft: Run, operator: Client) -> None:
    with pytest.raises(ConfigError, match=r"eval\.suites\.0\.margin: "):
        run_submit(run=draft, actor=oscar)
    page = operator.post(f"/p/ours/runs/{draft.pk}/submit/", follow=True).content.decode()
    assert "Nothing was done: eval.margin: " in words(page)
    assert Run.objects.get().state == "draft"
    with_margin(draft, 0.2)
    run_submit(run=draft, actor=oscar)
    assert Run.objects.get().state == "queued"


@pytest.mark.parametrize(
    ("state", "again"),
    [
        ("failed", lambda run, actor: run_retry(run=run, actor=actor)),
        ("failed", lambda run, actor: run_retry(run=run, actor=actor, from_start=True)),
        ("failed", lambda run, actor: run_extend(run=run, actor=actor, steps=1)),
        ("paused", lambda run, actor: run_resume(run=run, actor=actor)),
    ],
    ids=["retry", "from the start", "extend", "resume"],
)
def test_an_old_run_is_not_restarted(oscar: User, old: Run, state: str, again: Callable[[Run, User], None]) -> None:
    put_in(old, state)
    with pytest.raises(NotPossible, match=r"eval\.margin: "):
        again(old, oscar)
    assert Run.objects.get().state == state
    with_margin(old, 0.2)
    again(Run.objects.get(), oscar)
    assert Run.objects.get().state == "queued"
