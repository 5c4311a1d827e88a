"""The page of statements: who may state, what comes back when it cannot be taken, what the record's page says of it."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.governance.models import Statement
from cohort.governance.services import record_seal
from cohort.governance.statements.questions import QUESTIONS
from cohort.governance.statements.services import flag_override
from cohort.runs.models import Run
from tests import sealed_run

pytestmark = pytest.mark.django_db(transaction=True)
ClientFor = Callable[[User], Client]
Launch = Callable[..., Run]


@pytest.fixture
def run(launch: Launch) -> Run:
    return launch(name="<b>bold</b> run")


def place(run: Run) -> str:
    return f"/p/ours/runs/{run.pk}/statements/"


def test_owner_reviewer_viewer_stranger_and_nobody(
    client_for: ClientFor, rita: User, bob: User, charlie: User, run: Run
) -> None:
    answer = {"action": "state", "field": "method.rationale", "text": "as told", "audience": "authority"}
    viewer = client_for(bob).get(place(run))
    assert viewer.status_code == 200
    assert '<form class="stack-s statement-form"' not in viewer.content.decode()
    assert client_for(bob).post(place(run), answer).status_code == 403
    assert client_for(charlie).get(place(run)).status_code == 404
    assert client_for(charlie).post(place(run), answer).status_code == 404
    assert Client().get(place(run)).status_code == 302
    assert not Statement.objects.exists()
    made = client_for(rita).post(place(run), answer)
    assert (made.status_code, made["Location"]) == (302, f"{place(run)}#method-rationale")
    assert Statement.objects.get().by == rita


def test_every_question_is_asked_with_what_holds_and_its_history(client_for: ClientFor, rita: User, run: Run) -> None:
    client = client_for(rita)
    page = client.get(place(run)).content.decode()
    for question in QUESTIONS:
        assert f'id="{question.name}"' in page
        assert question.asks.replace("'", "&#x27;") in page
    assert "asked of every run" in page
    assert "<b>bold" not in page
    hostile = "<script>alert(1)</script> \u202e"
    for text in ("first words", hostile):
        client.post(place(run), {"action": "state", "field": "data.choice", "text": text, "audience": "public"})
    page = client.get(place(run)).content.decode()
    assert "<script>alert" not in page
    assert "\\u202e" in page, "shown as what it is where it is read"
    assert page.count("\u202e") == 1, "and as it was written where it is edited"
    assert "first words" in page
    assert f"1 of {len(QUESTIONS)} answered" in page
    client.post(place(run), {"action": "withdraw", "field": "data.choice", "reason": "it was a joke"})
    page = client.get(place(run)).content.decode()
    assert "taken back: it was a joke" in page
    assert f"0 of {len(QUESTIONS)} answered" in page


def test_ten_megabytes_come_back_with_the_reason_and_nothing_is_lost(
    client_for: ClientFor, rita: User, run: Run
) -> None:
    long = "ten megabytes of words. " * 440_000
    sent = {"action": "state", "field": "reward.domain", "chosen": ["code", "science"], "text": long}
    response = client_for(rita).post(place(run), {**sent, "audience": "downstream"})
    page = response.content.decode()
    assert response.status_code == 422
    assert "The text is 10,559,999 characters long; 20,000 at most are taken." in page
    assert long.strip() in page
    chosen = re.findall(r'<input type="checkbox" name="chosen" value="(\w+)"[^>]* checked', page)
    assert chosen == ["code", "science"]
    assert '<option value="downstream" selected>' in page
    assert '<details class="statement" id="reward-domain" open>' in page
    assert not Statement.objects.exists()


def test_far_beyond_that_nothing_is_read(client_for: ClientFor, rita: User, run: Run) -> None:
    sent = {"action": "state", "field": "data.choice", "text": "x" * 17_000_000, "audience": "public"}
    response = client_for(rita).post(place(run), sent)
    assert response.status_code == 413
    assert "takes at most" in response.content.decode()


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"action": "state", "field": "handling.trace_policy", "audience": "public"}, "This field is required"),
        (
            {"action": "state", "field": "handling.trace_policy", "chosen": "x", "audience": "public"},
            "is not one of the available choices",
        ),
        ({"action": "state", "field": "data.choice", "text": "x", "audience": "all"}, "not one of the available"),
        (
            {"action": "state", "field": "budget.base_share", "text": "much", "audience": "public"},
            "Begin with a number",
        ),
        ({"action": "withdraw", "field": "data.choice", "reason": "x"}, "Nothing is stated there"),
        ({"action": "override", "field": "oversight.overrides:luck", "reason": "x"}, "is no monitor"),
        ({"action": "withdraw", "field": "oversight.overrides:kl_spike", "reason": "x"}, "Nothing is stated there"),
        ({"action": "state", "field": "method.loss", "text": "x"}, "This form is not of this page"),
        ({}, "This form is not of this page"),
    ],
)
def test_what_cannot_be_taken_is_told(
    client_for: ClientFor, oscar: User, run: Run, sent: dict[str, str], told: str
) -> None:
    response = client_for(oscar).post(place(run), sent)
    assert response.status_code == 422
    assert told in response.content.decode()
    assert not Statement.objects.exists()


def test_it_can_be_used_before_during_and_after(client_for: ClientFor, rita: User, run: Run) -> None:
    """Before it runs, while it runs, and when its record is sealed, which says that a version is missing it."""
    client = client_for(rita)

    def states(text: str) -> None:
        sent = {"action": "state", "field": "method.rationale", "text": text, "audience": "public"}
        assert client.post(place(run), sent).status_code == 302

    states("before")
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, sealed_run.whole(run))
    states("during")
    record = record_seal(run=sealed_run.finish(attempt))
    assert "during" in record.document
    assert "newer than" not in client.get(place(run)).content.decode()
    states("after")
    page = client.get(place(run)).content.decode()
    assert "1 statement is newer than the sealed record and not in it" in page
    assert client.get(f"/p/ours/runs/{run.pk}/").content.decode().count(place(run)) == 1, "linked from the run"


@pytest.fixture
def flagged(launch: Launch) -> Run:
    """A run that has ended, with the flag for cut-off completions raised."""
    run = launch(settings={**sealed_run.SETTINGS, "optim": {"steps": 3}})
    told = [
        one.model_copy(update={"metrics": {"reward": 0.5, "completions/clipped_ratio": 0.6}})
        if one.kind == "step"
        else one
        for one in sealed_run.whole(run)
    ]
    return sealed_run.finished(run, told)


def test_flags_stand_on_the_page_and_can_be_overridden(client_for: ClientFor, oscar: User, flagged: Run) -> None:
    client, run = client_for(oscar), flagged
    page = client.get(place(run)).content.decode()
    assert "60.0 % of completions were cut off in the last fifth of the steps" in page
    field = "oversight.overrides:truncation"
    refused = client.post(place(run), {"action": "override", "field": field, "reason": " "})
    assert (refused.status_code, "Say why the flag is accepted" in refused.content.decode()) == (422, True)
    client.post(place(run), {"action": "override", "field": field, "reason": "short on purpose"})
    page = client.get(place(run)).content.decode()
    assert "Overridden by oscar on" in page
    assert "“short on purpose”" in page
    record_seal(run=Run.objects.get(pk=run.pk))
    page = client.get(f"/p/ours/runs/{run.pk}/record/").content.decode()
    assert "overridden by oscar: “short on purpose”" in page


@pytest.mark.parametrize(
    ("name", "override", "withdrawal"),
    [("alice", 302, 302), ("oscar", 302, 302), ("rita", 403, 403), ("bob", 403, 403), ("charlie", 404, 404)],
)
@pytest.mark.usefixtures("alice", "oscar", "rita", "bob", "charlie")
def test_an_override_is_made_and_taken_back_by_operators(
    client_for: ClientFor, flagged: Run, name: str, override: int, withdrawal: int
) -> None:
    """Owner, operator, reviewer, viewer, stranger: as after the seal (test_life_pages.py)."""
    client = client_for(User.objects.get(username=name))
    shown = client.get(place(flagged))
    assert ("Override…" in shown.content.decode()) == (override == 302)
    if shown.status_code == 200:
        told = "Operators and admins of the project override" in shown.content.decode()
        assert told == (override == 403)
    sent = {"field": "oversight.overrides:truncation", "reason": "short on purpose"}
    answer = client.post(place(flagged), {"action": "override", **sent})
    assert answer.status_code == override
    if override == 403:
        assert "This needs the role operator" in answer.content.decode()
    if override != 302:
        assert not Statement.objects.exists()
        flag_override(run=flagged, actor=User.objects.get(username="alice"), flag="truncation", reason="as planned")
    assert client.post(place(flagged), {"action": "withdraw", **sent}).status_code == withdrawal
    assert Statement.objects.count() == (2 if withdrawal == 302 else 1)
