"""What people state of a run: the newest holds, what was said stays, and a form that is refused loses nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client

from cohort.accounts.models import Membership, Project, User
from cohort.records.models import Record, Statement
from cohort.records.services import record_seal
from cohort.records.statements.questions import QUESTIONS
from cohort.records.statements.services import (
    flag_override,
    newest_statements,
    questions_of,
    statement_make,
    statement_withdraw,
)
from cohort.runs.models import Run
from cohort.web.home.selectors import Home
from tests.factories import sealed_run
from tests.tables import cases
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import entry, logged, page_text
from tests.web.records.scenarios import changed

pytestmark = pytest.mark.django_db
FIELD = "method.rationale"


@pytest.fixture
def run(launch: Callable[..., Run]) -> Run:
    return launch(name="<b>bold</b> run")


@pytest.fixture
def client(client_for: Callable[[User], Client], oscar: User) -> Client:
    return client_for(oscar)


@pytest.fixture
def place(run: Run) -> str:
    return f"/p/ours/runs/{run.pk}/statements/"


def test_the_newest_holds_and_what_was_said_stays(run: Run, alice: User, rita: User) -> None:
    def question() -> tuple[Statement | None, list[str]]:
        row = next(row for row in questions_of(run) if row.question.field == FIELD)
        return row.current, [Statement.objects.get(pk=pk).text for pk in row.earlier]

    statement_make(run=run, actor=alice, field=FIELD, text="first")
    statement_make(run=run, actor=rita, field=FIELD, text="second", reason="clearer")
    assert newest_statements(run)[FIELD].text == "second"
    current, earlier = question()
    assert current is not None
    assert (current.by, earlier) == (rita, ["first"])
    statement_withdraw(run=run, actor=alice, field=FIELD, reason="it was not so")
    assert FIELD not in newest_statements(run)
    assert question() == (None, ["", "second", "first"])
    assert entry(record_seal(run=sealed_run.finished(run)), FIELD).text == "not stated"
    _, second = logged("statement_made")
    assert (second["before"]["text"], second["after"]["text"], second["reason"]) == ("first", "second", "clearer")
    (body,) = logged("statement_withdrawn")
    assert (body["actor"], body["reason"], body["subject"]) == ("user:alice", "it was not so", f"run:{run.pk}")


@pytest.mark.parametrize(("field", "answer", "words"), cases("records/statements_refused", "field", "answer", "words"))
def test_refuses_what_the_question_cannot_take(
    world: World, run: Run, field: str, answer: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        statement_make(run=run, actor=world.alice, field=field, **answer)
    assert not Statement.objects.exists()
    assert logged("statement_made") == []


def test_saying_the_same_again_changes_nothing(run: Run, alice: User) -> None:
    statement_make(run=run, actor=alice, field=FIELD, text="once")
    with pytest.raises(ValidationError, match="already"):
        statement_make(run=run, actor=alice, field=FIELD, text=" once ")
    statement_make(run=run, actor=alice, field=FIELD, text="once", audience="public")
    assert Statement.objects.count() == 2, "another audience is another statement"


def test_taking_back_and_overriding_need_something_and_a_reason(run: Run, alice: User) -> None:
    for field in (FIELD, "no.such", "a\0b", "oversight.overrides:a\0b"):
        with pytest.raises(ValidationError, match="Nothing is stated"):
            statement_withdraw(run=run, actor=alice, field=field, reason="x")
    statement_make(run=run, actor=alice, field=FIELD, text="once")
    with pytest.raises(ValidationError, match="Say why"):
        statement_withdraw(run=run, actor=alice, field=FIELD, reason=" ")
    with pytest.raises(ValidationError, match="no monitor"):
        flag_override(run=run, actor=alice, flag="luck", reason="x")
    with pytest.raises(ValidationError, match="Say why"):
        flag_override(run=run, actor=alice, flag="kl_spike", reason="")


def test_statements_cannot_be_changed_or_deleted(run: Run, alice: User) -> None:
    statement_make(run=run, actor=alice, field=FIELD, text="once")
    for change in (lambda: Statement.objects.update(text="other"), Statement.objects.all().delete):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()


# ---------------------------------------------------------------------- the page


def save(client: Client, place: str, **texts: str) -> Any:
    """All answers at once, as a window sends them that was opened now; `texts` by the name of the question's input."""
    rows = client.get(place).context["sheet"].rows
    holds = {row.question.name: row.current.pk if row.current else 0 for row in rows}
    sent = {"action": "save"}
    for key, text in texts.items():
        name = key.replace("_", "-", 1)
        sent |= {f"{name}-text": text, f"{name}-audience": "public", f"{name}-since": str(holds[name])}
    return client.post(place, sent)


def test_the_page_asks_every_question_with_what_holds_and_its_history(
    client: Client, run: Run, place: str, golden: Callable[[str, Any], None]
) -> None:
    """With a flag that was raised, and overridden."""
    cut = {"reward": 0.5, "completions/clipped_ratio": 0.6}
    sealed_run.finished(run, changed(sealed_run.whole(run), "step", metrics=cut))
    hostile = "<script>alert(1)</script> \u202e"
    for text in ("first words", hostile):
        save(client, place, data_choice=text)
    save(client, place, method_rationale="a joke")
    client.post(place, {"action": f"withdraw:{FIELD}", "method-rationale-reason": "it was a joke"})
    override = {"action": "override:oversight.overrides:truncation"}
    assert client.post(place, {**override, "reason": " "}).status_code == 422
    client.post(place, {**override, "reason": "short on purpose"})
    response = client.get(place)
    page = response.content.decode()
    golden("pages/statements.txt", page_text(response))
    assert all(f'id="{question.name}"' in page for question in QUESTIONS)
    assert "<script>alert" not in page
    assert "<b>bold" not in page
    assert page.count("\u202e") == 1, "as it was written where it is edited, escaped where it is read"


def test_a_long_history_is_shown_by_the_page(client: Client, run: Run, place: str, alice: User) -> None:
    for number in range(23):
        statement_make(run=run, actor=alice, field=FIELD, text=f"answer {number}.")
    first = html(client.get(place))
    assert "22 earlier" in first
    texts = [f'<p class="said">answer {number}.</p>' for number in (22, 21, 2, 1, 0)]
    assert [text in first for text in texts] == [True, True, True, False, False]
    later = "history-method-rationale=2"
    assert f'href="?{later}#method-rationale" rel="next"' in first
    second = html(client.get(f"{place}?{later}"))
    assert [text in second for text in texts] == [True, False, False, True, True]
    assert '<details class="statement" id="method-rationale" open>' in second


def test_what_is_too_long_comes_back_and_nothing_is_lost(client: Client, place: str) -> None:
    long = "ten megabytes of words. " * 440_000
    sent = {"action": "save", "reward-domain-chosen": ["code", "science"], "reward-domain-text": long}
    response = client.post(place, {**sent, "reward-domain-audience": "downstream"})
    page = response.content.decode()
    assert response.status_code == 422
    assert long.strip() in page
    form = response.context["sheet"].row("reward.domain").form
    assert (form["chosen"].value(), form["audience"].value()) == (["code", "science"], "downstream")
    assert '<details class="statement" id="reward-domain" open>' in page
    sent["reward-domain-text"] = "x" * 17_000_000
    assert client.post(place, sent).status_code == 413, "so much is not read"
    assert not Statement.objects.exists()


@pytest.mark.parametrize(("sent", "words"), cases("records/statement_forms_refused", "sent", "words"))
def test_a_form_that_cannot_be_taken_says_why(client: Client, place: str, sent: dict[str, str], words: str) -> None:
    response = client.post(place, sent)
    assert response.status_code == 422
    assert words in response.content.decode()
    assert not Statement.objects.exists()


def test_statements_are_made_before_during_and_after_the_run(client: Client, run: Run, place: str) -> None:
    def states(text: str) -> None:
        assert save(client, place, method_rationale=text).status_code == 302

    states("before")
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, sealed_run.whole(run))
    states("during")
    record = record_seal(run=sealed_run.finish(attempt))
    assert entry(record, FIELD).text == "during"
    assert client.get(place).context["stated_since"] == 0
    states("after")
    assert client.get(place).context["stated_since"] == 1
    assert place in client.get(f"/p/ours/runs/{run.pk}/").content.decode(), "linked from the run"


def test_home_shows_a_record_whose_required_question_is_open(
    sealed: Record, ours: Project, rita: User, bob: User, client_for: Callable[[User], Client]
) -> None:
    """Until somebody answers it, and again after the answer is withdrawn; to those who may answer."""

    def unanswered(user: User) -> list[int]:
        home = Home(Membership.objects.get(user=user, project=ours))
        return [need.unanswered for need in home.needs if need.run == sealed.run and need.link != "run_statements"]

    field = "reward.verifiable_or_social"
    assert (unanswered(rita), unanswered(bob)) == ([1], [])
    draft = {"action": "draft", "data-choice-text": "small", "data-choice-audience": "public"}
    client_for(rita).post(f"/p/ours/runs/{sealed.run_id}/statements/", draft)
    assert "1 answer not saved" in html(client_for(rita).get("/p/ours/"))
    assert "answer not saved" not in html(client_for(bob).get("/p/ours/"))
    statement_make(run=sealed.run, actor=rita, field=field, chosen=["verifiable"])
    assert unanswered(rita) == [0], "the sign-off is left"
    statement_withdraw(run=sealed.run, actor=rita, field=field, reason="It was of another run.")
    assert unanswered(rita) == [1]
