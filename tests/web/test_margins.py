"""Margins of non-inferiority: how large one may be, said beside its field; a run that was taken with a larger one is
read as it was judged and is not launched again."""

import json
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuite
from cohort.governance.services import record_seal
from cohort.runs.models import Run
from cohort.runs.services import ChosenSuite, NotPossible, run_create, run_extend, run_resume, run_retry, run_submit
from grpo_core.errors import ConfigError
from tests import sealed_run
from tests.web.form_page import said, value
from tests.web.run_page import page_of, words
from tests.web.run_rows import Maker, add_checkpoint, add_evaluation, put_in
from tests.web.suite_rows import ITEMS, add_suite, upload

ClientFor = Callable[[User], Client]
NEW = "/p/ours/runs/new/"
RULE = (
    "Margin must be at most 0.2 (20 points): harm below the margin counts as not worse, and a larger one would excuse "
    "the loss of more than one answer in five"
)


def with_margin(run: Run, margin: float) -> None:
    """As an earlier Cohort stored it: for the held-out problems, and for each suite."""
    config: dict[str, Any] = run.config
    suites = [{**suite, "margin": margin} for suite in config["eval"]["suites"]]
    run.config = {**config, "eval": {**config["eval"], "margin": margin, "suites": suites}}
    run.save(update_fields=["config"])


@pytest.fixture
def draft(ours: Project, alice: User, maker: Maker) -> Run:
    """With the suite capitals, and margins of 100 points."""
    run = run_create(
        **maker._named("old"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(add_suite(ours, alice))]
    )
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


@pytest.mark.parametrize(("text", "taken"), [("0.2", True), ("0.21", False), ("5", False), ("100", False)])
def test_of_a_suite_in_the_run_form(
    client_for: ClientFor, ours: Project, oscar: User, chosen: dict[str, str], text: str, taken: bool
) -> None:
    suite = add_suite(ours, oscar)
    sent = {f"suite.{suite.pk}": "true", f"suite.{suite.pk}.margin": text, "action": "draft"}
    response = client_for(oscar).post(NEW, chosen | sent)
    assert response.status_code == (302 if taken else 422)
    assert Run.objects.count() == taken
    if not taken:
        page = response.content.decode()
        assert RULE in unescape(said(page, f"f-suite-{suite.pk}-margin"))
        assert value(page, f"suite.{suite.pk}.margin") == text


@pytest.mark.parametrize(("text", "taken"), [("0.2", True), ("0.21", False)])
def test_of_all_suites_in_the_run_form(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], text: str, taken: bool
) -> None:
    response = client_for(oscar).post(NEW, chosen | {"eval.margin": text, "action": "draft"})
    assert response.status_code == (302 if taken else 422)
    if not taken:
        told = unescape(said(response.content.decode(), "f-eval-margin"))
        assert RULE.replace("Margin", "Margin of regression", 1) in told


@pytest.mark.parametrize(("text", "taken"), [("0.2", True), ("0.21", False), ("1", False)])
def test_of_a_suite_that_is_added(client_for: ClientFor, ours: Project, oscar: User, text: str, taken: bool) -> None:
    response = upload(client_for(oscar), ("items.jsonl", ITEMS), margin=text)
    assert response.status_code == (302 if taken else 422)
    assert EvalSuite.objects.count() == taken
    if not taken:
        assert RULE in unescape(response.content.decode()).split('id="id_margin_error"')[1][:300]


def test_an_old_run_is_shown_as_it_was_judged(client_for: ClientFor, bob: User, old: Run) -> None:
    text = words(page_of(client_for(bob), old, "evaluations/"))
    assert "worse within margin 100" in text
    assert "Margin 100 points, fixed before the run" in text
    assert "margin: 1.0" in page_of(client_for(bob), old, "config/")
    assert "margin: 1.0" in page_of(client_for(bob), old, "config.yaml")


@pytest.mark.django_db(transaction=True)
def test_an_old_run_is_sealed_as_it_was_judged(client_for: ClientFor, bob: User, launch: Callable[..., Run]) -> None:
    run = launch()
    with_margin(run, 1.0)
    record = record_seal(run=sealed_run.finished(run))
    assert [one["margin"] for one in json.loads(record.document)["sections"]["behaviour"]["performance"]["value"]] == [
        1
    ]
    assert "margin 100" in words(page_of(client_for(bob), run, "record/"))


def test_its_clone_asks_for_another(client_for: ClientFor, oscar: User, old: Run) -> None:
    page = client_for(oscar).get(NEW, {"clone": old.pk}).content.decode()
    assert value(page, "eval.margin") == "1"
    assert value(page, f"suite.{old.run_suites.get().version_id}.margin") == "1"


def test_an_old_draft_is_not_launched(client_for: ClientFor, oscar: User, draft: Run) -> None:
    with pytest.raises(ConfigError, match=r"eval\.suites\.0\.margin: must be at most 0\.2"):
        run_submit(run=draft, actor=oscar)
    page = client_for(oscar).post(f"/p/ours/runs/{draft.pk}/submit/", follow=True).content.decode()
    assert "Nothing was done: eval.margin: must be at most 0.2" in words(page)
    assert Run.objects.get().state == "draft"
    with_margin(draft, 0.2)
    run_submit(run=draft, actor=oscar)
    assert Run.objects.get().state == "queued"


@pytest.mark.parametrize(
    "again",
    [
        lambda run, actor: run_retry(run=run, actor=actor),
        lambda run, actor: run_retry(run=run, actor=actor, from_start=True),
        lambda run, actor: run_extend(run=run, actor=actor, steps=1),
    ],
)
def test_an_old_run_is_not_put_back_to_work(oscar: User, old: Run, again: Callable[[Run, User], None]) -> None:
    with pytest.raises(NotPossible, match=r"eval\.margin: must be at most 0\.2.*Clone it and change that"):
        again(old, oscar)
    assert Run.objects.get().state == "failed"
    with_margin(old, 0.2)
    again(Run.objects.get(), oscar)
    assert Run.objects.get().state == "queued"


def test_a_paused_one_is_not_resumed(client_for: ClientFor, oscar: User, draft: Run) -> None:
    put_in(draft, "paused")
    with pytest.raises(NotPossible, match="Clone it and change that"):
        run_resume(run=draft, actor=oscar)
    page = client_for(oscar).post(f"/p/ours/runs/{draft.pk}/resume/", follow=True).content.decode()
    assert "its config is not launched any more: eval.margin: must be at most 0.2" in words(page)
    assert Run.objects.get().state == "paused"
