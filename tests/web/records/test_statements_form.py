"""All questions of a run as one form: drafts are kept, all answers are saved together or none, and a project's standing
answers are stated by whoever uses them."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client

from cohort.accounts.models import User
from cohort.records.models import StandingAnswer, Statement, StatementDraft
from cohort.records.services import record_seal
from cohort.records.statements.answers import Given
from cohort.records.statements.edits import Edit
from cohort.records.statements.questions import BY_FIELD, QUESTIONS
from cohort.records.statements.services import statement_make, statement_withdraw, statements_save
from cohort.records.statements.standing import standing_answers, standing_save, standing_withdraw
from cohort.runs.models import Run
from cohort.web.statements.sheet import Row
from tests.factories import sealed_run
from tests.tables import cases
from tests.web.pages import html
from tests.web.records.records import entry, logged

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}
INVENTORY, MONITORING, RATIONALE = "handling.inventory", "handling.monitoring", "method.rationale"


@pytest.fixture
def run(launch: Callable[..., Run]) -> Run:
    return launch()


@pytest.fixture
def client(client_for: Callable[[User], Client], oscar: User) -> Client:
    return client_for(oscar)


@pytest.fixture
def address(run: Run) -> str:
    return f"/p/ours/runs/{run.pk}/statements/"


def edit(field: str, text: str = "", chosen: tuple[str, ...] = (), **more: Any) -> Edit:
    return Edit(Given.of(BY_FIELD[field], text=text, chosen=chosen), **more)


def opened(client: Client, address: str) -> dict[str, Any]:
    """What a browser sends of the page as it was opened."""
    page = client.get(address).context["sheet"]
    sent: dict[str, Any] = {"window": page.window}
    for row in page.rows:
        name, shown = row.question.name, row.shown
        sent |= {f"{name}-text": shown.text, f"{name}-chosen": list(shown.chosen), f"{name}-audience": shown.audience}
        sent |= {f"{name}-since": row.current.pk if row.current else 0}
        sent |= {f"{name}-revision": row.draft.revision if row.draft else 0}
        sent |= {f"{name}-standing": row.uses.pk} if row.uses else {}
    return sent


def row(client: Client, address: str, field: str) -> Row:
    shown: Row = client.get(address).context["sheet"].row(field)
    return shown


# ---------------------------------------------------------------------- drafts


def test_what_is_typed_is_kept_for_its_person_alone(
    client: Client, client_for: Callable[[User], Client], rita: User, address: str
) -> None:
    sent = opened(client, address) | {"method-rationale-text": "half a sent", "budget-base_share-text": "much"}
    answer = html(client.post(address, sent | {"action": "draft"}, headers=HTMX))
    assert answer.count("draft, not saved") == 2
    assert "2 drafts, not saved" in answer
    assert not Statement.objects.exists()
    kept = row(client, address, RATIONALE)
    assert (kept.shown.text, kept.current, kept.open) == ("half a sent", None, True)
    assert "draft, not saved" in html(client.get(address))
    assert row(client_for(rita), address, RATIONALE).draft is None


def test_a_draft_that_is_typed_back_or_discarded_is_gone(client: Client, run: Run, oscar: User, address: str) -> None:
    statement_make(run=run, actor=oscar, field=RATIONALE, text="as planned")
    sent = opened(client, address)
    for text, drafts in (("as", 1), ("as planned ", 0), ("as planed", 1)):
        client.post(address, sent | {"action": "draft", "method-rationale-text": text}, headers=HTMX)
        assert StatementDraft.objects.count() == drafts, text
    sent = opened(client, address) | {"data-choice-text": "small"}
    assert client.post(address, sent | {"action": f"discard:{RATIONALE}"}).status_code == 302
    assert [draft.field for draft in StatementDraft.objects.all()] == ["data.choice"], "typed meanwhile, so kept"
    client.post(address, opened(client, address) | {"action": "discard:all"})
    assert not StatementDraft.objects.exists()


def test_a_draft_that_arrives_after_its_answer_is_no_draft(client: Client, address: str) -> None:
    sent = opened(client, address) | {"method-rationale-text": "as planned"}
    assert client.post(address, sent | {"action": "save"}).status_code == 302
    client.post(address, sent | {"action": "draft"}, headers=HTMX)
    assert not StatementDraft.objects.exists()
    client.post(address, sent | {"action": "draft", "method-rationale-text": "as planned, and"}, headers=HTMX)
    assert StatementDraft.objects.get().text == "as planned, and"


def test_the_later_window_wins_and_says_what_it_replaced(client: Client, address: str) -> None:
    first, second = opened(client, address), opened(client, address)

    def draft(sent: dict[str, Any], text: str) -> str:
        return html(client.post(address, sent | {"action": "draft", "method-rationale-text": text}, headers=HTMX))

    assert "Another window" not in draft(first, "of the first")
    answer = draft(second, "of the second")
    assert "Another window had saved a draft meanwhile" in answer
    assert "of the first" in answer
    assert row(client, address, RATIONALE).shown.text == "of the second"
    assert "Another window" not in draft(second, "of the second, longer")


def test_another_window_with_another_question_loses_nothing(client: Client, address: str) -> None:
    first, second = opened(client, address), opened(client, address)
    one = {name: value for name, value in first.items() if name.startswith(("method-rationale", "window"))}
    other = {name: value for name, value in second.items() if name.startswith(("data-choice", "window"))}
    client.post(address, one | {"action": "draft", "method-rationale-text": "a"}, headers=HTMX)
    client.post(address, other | {"action": "draft", "data-choice-text": "b"}, headers=HTMX)
    assert {draft.field: draft.text for draft in StatementDraft.objects.all()} == {RATIONALE: "a", "data.choice": "b"}


def test_a_text_too_long_for_a_draft_is_said_and_not_cut(client: Client, address: str) -> None:
    sent = opened(client, address) | {"method-rationale-text": "x" * 200_001, "action": "draft"}
    assert "Not kept as a draft" in html(client.post(address, sent, headers=HTMX))
    response = client.post(address, sent)
    assert (response.status_code, "x" * 200_001 in html(response)) == (422, True)
    assert not StatementDraft.objects.exists()


# ---------------------------------------------------------------------- many at once


def test_all_that_was_changed_is_saved_each_as_a_statement_of_its_own(
    client: Client, run: Run, rita: User, address: str
) -> None:
    statement_make(run=run, actor=rita, field=MONITORING, text="monthly")
    sent = opened(client, address) | {
        "method-rationale-text": "cheap",
        "reward-domain-chosen": ["science", "code"],
        "handling-trace_policy-chosen": ["hidden"],
        "handling-trace_policy-text": "by the product",
    }
    client.post(address, sent | {"action": "draft"}, headers=HTMX)
    assert client.post(address, sent | {"action": "save"}, follow=True).context["sheet"].answered == 4
    made = {statement.field: statement.text for statement in Statement.objects.filter(by__username="oscar")}
    assert made == {
        RATIONALE: "cheap",
        "reward.domain": "code, science",
        "handling.trace_policy": "hidden: users do not see them. by the product",
    }
    assert len(logged("statement_made")) == 4
    assert not StatementDraft.objects.exists()


def test_one_fault_keeps_all_from_being_saved_and_every_fault_is_shown(
    client_for: Callable[[User], Client], rita: User, address: str
) -> None:
    client = client_for(rita)
    sent = opened(client, address) | {
        "action": "save",
        "method-rationale-text": "cheap",
        "budget-base_share-text": "much",
        "subject-pipeline-text": "dreams: all night",
        "reward-disclosure-chosen": "withheld",
    }
    response = client.post(address, sent)
    sheet = response.context["sheet"]
    assert response.status_code == 422
    assert {row.question.field: row.faults[0].split(":")[0] for row in sheet.faulty} == {
        "budget.base_share": "Begin with a number above 0, such as 1.2e22; its source may follow after it.",
        "subject.pipeline": "Line 1",
        "reward.disclosure": "This needs the role operator; yours is reviewer.",
    }
    assert sheet.row(RATIONALE).shown.text == "cheap"
    assert not Statement.objects.exists()
    assert StatementDraft.objects.count() == 4, "and a reload has them all"


@pytest.mark.parametrize("answered", ["other words", ""])
def test_an_answer_that_somebody_gave_meanwhile_is_not_overwritten_unseen(
    client: Client, run: Run, rita: User, address: str, answered: str
) -> None:
    statement_make(run=run, actor=rita, field=RATIONALE, text="before")
    sent = opened(client, address) | {"method-rationale-text": "mine", "action": "save"}
    if answered:
        statement_make(run=run, actor=rita, field=RATIONALE, text=answered)
    else:
        statement_withdraw(run=run, actor=rita, field=RATIONALE, reason="wrong")
    response = client.post(address, sent)
    assert response.status_code == 422
    assert (f"rita answered: “{answered}”" if answered else "the answer was withdrawn") in html(response)
    assert client.post(address, opened(client, address) | {"action": "save"}).status_code == 302, "seen, so saved"
    assert Statement.objects.order_by("-pk")[0].text == "mine"


def test_a_window_that_changed_nothing_overwrites_nothing(client: Client, run: Run, rita: User, address: str) -> None:
    statement_make(run=run, actor=rita, field=RATIONALE, text="before")
    sent = opened(client, address) | {"data-choice-text": "small", "action": "save"}
    statement_make(run=run, actor=rita, field=RATIONALE, text="after")
    assert client.post(address, sent).status_code == 302
    assert [statement.text for statement in Statement.objects.order_by("pk")] == ["before", "after", "small"]


def test_an_emptied_answer_is_no_withdrawal(client: Client, run: Run, oscar: User, address: str) -> None:
    statement_make(run=run, actor=oscar, field=RATIONALE, text="before")
    response = client.post(address, opened(client, address) | {"method-rationale-text": " ", "action": "save"})
    assert (response.status_code, "To withdraw what was stated" in html(response)) == (422, True)


@pytest.mark.parametrize(("show", "fields"), cases("records/statement_filters", "show", "fields"))
def test_the_form_shows_all_what_is_open_or_what_is_a_draft(
    client: Client, run: Run, oscar: User, address: str, show: str, fields: int
) -> None:
    statement_make(run=run, actor=oscar, field=RATIONALE, text="cheap")
    client.post(address, opened(client, address) | {"data-choice-text": "small", "action": "draft"}, headers=HTMX)
    sheet = client.get(f"{address}?show={show}").context["sheet"]
    assert (sheet.shown, sheet.answered, sheet.total) == (fields, 1, len(QUESTIONS))
    assert [(part.key, part.answered, part.total) for part in sheet.parts if part.key == "method"] == [("method", 1, 1)]


# ---------------------------------------------------------------------- standing answers


@pytest.fixture
def kept(run: Run, rita: User) -> dict[str, StandingAnswer]:
    edits = {INVENTORY: edit(INVENTORY, "AI-7"), MONITORING: edit(MONITORING, "weekly")}
    standing_save(project=run.project, actor=rita, edits=edits)
    return standing_answers(run.project)


def test_standing_answers_are_drafts_until_a_person_states_them(
    client: Client, run: Run, kept: dict[str, StandingAnswer], address: str
) -> None:
    assert [row.question.field for row in client.get(address).context["sheet"].usable] == [INVENTORY, MONITORING]
    assert "Use 2 standing answers" in html(client.get(address))
    client.post(address, opened(client, address) | {"action": "use:all"})
    assert not Statement.objects.exists(), "nothing is stated silently"
    sent = opened(client, address)
    assert (sent["handling-inventory-text"], sent["handling-inventory-standing"]) == ("AI-7", kept[INVENTORY].pk)
    client.post(address, sent | {"handling-monitoring-text": "daily", "action": "save"})
    stated = {statement.field: statement for statement in Statement.objects.all()}
    assert (stated[INVENTORY].standing, stated[MONITORING].standing) == (kept[INVENTORY], None), "changed words are own"
    record = record_seal(run=sealed_run.finished(run))
    inventory, monitoring = entry(record, INVENTORY), entry(record, MONITORING)
    assert (inventory.text, inventory.source) == ("AI-7", "stated by oscar")
    when = f"{kept[INVENTORY].at.day} {kept[INVENTORY].at:%b %Y}"
    assert f"the project's standing answer, kept by rita since {when}" in inventory.note
    assert "standing" not in monitoring.note


def test_one_standing_answer_is_used_in_place_of_what_holds(
    client: Client, run: Run, oscar: User, kept: dict[str, StandingAnswer], address: str
) -> None:
    statement_make(run=run, actor=oscar, field=INVENTORY, text="AI-6")
    client.post(address, opened(client, address) | {"action": f"use:{INVENTORY}"})
    assert client.post(address, opened(client, address) | {"action": "save"}).status_code == 302
    newest = Statement.objects.order_by("-pk")[0]
    assert (newest.field, newest.text, newest.standing) == (INVENTORY, "AI-7", kept[INVENTORY])


@pytest.mark.parametrize("replaced", [True, False])
def test_a_standing_answer_that_changed_since_it_was_used_is_not_stated_unseen(
    client: Client, run: Run, rita: User, kept: dict[str, StandingAnswer], address: str, replaced: bool
) -> None:
    client.post(address, opened(client, address) | {"action": f"use:{INVENTORY}"})
    sent = opened(client, address) | {"action": "save"}
    if replaced:
        edits = {INVENTORY: edit(INVENTORY, "AI-9", since=kept[INVENTORY].pk)}
        standing_save(project=run.project, actor=rita, edits=edits)
    else:
        standing_withdraw(project=run.project, actor=rita, field=INVENTORY, reason="moved")
    response = client.post(address, sent)
    assert (response.status_code, "no longer the one that was used" in html(response)) == (422, True)
    assert client.post(address, opened(client, address) | {"action": "save"}).status_code == 302
    assert Statement.objects.get().standing is None


def test_a_standing_answer_that_there_is_not_is_none(
    client: Client, kept: dict[str, StandingAnswer], address: str
) -> None:
    for standing in (kept[MONITORING].pk, 10**17, "x"):
        sent = opened(client, address) | {"handling-inventory-text": f"AI {standing}", "action": "save"}
        assert client.post(address, sent | {"handling-inventory-standing": standing}).status_code == 302
    assert {statement.standing for statement in Statement.objects.all()} == {None}


def test_the_project_keeps_its_answers_with_author_age_and_history(
    client: Client, run: Run, kept: dict[str, StandingAnswer]
) -> None:
    page = "/p/ours/standing-answers/"
    sheet = client.get(page).context["sheet"]
    assert {row.question.field for row in sheet.rows} == {q.field for q in QUESTIONS if q.standing}
    client.post(page, opened(client, page) | {"handling-inventory-text": "AI-8", "action": "save"})
    shown = html(client.get(page))
    for text in ("AI-8", "1 earlier", "AI-7", "rita"):
        assert text in shown
    withdraw = {"action": f"withdraw:{MONITORING}", "handling-monitoring-reason": "another plan is written"}
    client.post(page, opened(client, page) | withdraw)
    assert {field: answer.text for field, answer in standing_answers(run.project).items()} == {INVENTORY: "AI-8"}
    assert [body["after"]["text"] for body in logged("standing_answer_kept")] == ["AI-7", "weekly", "AI-8"]
    assert logged("standing_answer_withdrawn")[0]["reason"] == "another plan is written"
    assert client.post(page, {"action": f"withdraw:{MONITORING}"}).status_code == 422


def test_standing_answers_are_only_added_and_of_no_single_run(run: Run, rita: User, bob: User) -> None:
    standing_save(project=run.project, actor=rita, edits={INVENTORY: edit(INVENTORY, "AI-7")})
    for change in (lambda: StandingAnswer.objects.update(text="x"), StandingAnswer.objects.all().delete):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()
    for actor, field, words in ((rita, RATIONALE, "for each run"), (bob, MONITORING, "needs the role reviewer")):
        with pytest.raises(ValidationError, match=words):
            standing_save(project=run.project, actor=actor, edits={field: edit(field, "x")})
    with pytest.raises(ValidationError, match="needs the role reviewer"):
        statements_save(run=run, actor=bob, edits={RATIONALE: edit(RATIONALE, "x")})
