"""Cards that their own check would reject are not stored: what is kept of the run, what people read, and who tries
again."""

from datetime import timedelta

import pytest
from django.db import connection

from cohort.background import reconcile
from cohort.background.reconcile import seals_republish
from cohort.background.tasks import seal
from cohort.records.models import Record
from cohort.records.services import seal_fault, version_request
from cohort.records.statements.services import statement_make
from cohort.review.models import Sample
from cohort.runs.models import Run, RunState
from tests.factories import sealed_run
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import TRACES, logged, stored

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]


def completion(run: Run, text: str) -> None:
    """What no service does: a completion that was committed to is changed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE review_sample SET completion = %s WHERE id = (SELECT min(sample.id) FROM review_sample sample "
            "JOIN review_group ON review_group.id = sample.group_id WHERE sample.run_id = %s)",
            [text, run.pk],
        )


def test_rows_that_do_not_fit_together_make_no_card(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every card is checked before it is stored; an operator reads what does not fit, and requests it when mended."""
    finished = sealed_run.finished(world.launch())
    kept = Sample.objects.filter(group__run=finished).earliest("pk").completion
    completion(finished, "else")
    for _ in range(2):
        seal(finished.pk)
    finished.refresh_from_db()
    assert (Record.objects.count(), stored(finished.pk), finished.state) == (0, [], RunState.SEALING)
    assert "the card for authority would not pass" in finished.reason
    assert f"completions: {TRACES}, line 1: " in finished.reason
    assert finished.events.filter(kind="seal_failed").count() == 1
    assert len([line for line in caplog.records if line.levelname == "ERROR"]) == 1
    client, url = world.client("oscar"), f"/p/ours/runs/{finished.pk}/record/"
    page = html(client.get(url))
    shown = ("The record could not be sealed</h2>", 'id="seal-fault"', "would not pass", f'action="{url}seal/"')
    assert all(part in page for part in shown)
    # a few tries, by pauses that no longer pass here
    monkeypatch.setattr(reconcile, "UNSEALED", timedelta(seconds=-1))
    assert [seals_republish() for _ in range(5)] == [[finished.pk]] * 3 + [[]] * 2
    completion(finished, kept)
    assert client.post(f"{url}seal/").status_code == 302
    assert logged("record_requested")[0]["actor"] == "user:oscar"
    seal(finished.pk)
    finished.refresh_from_db()
    assert finished.state == RunState.SUCCEEDED
    assert seal_fault(finished) == ""
    assert "The record of this run&#x27;s end is sealed." in html(client.post(f"{url}seal/", follow=True))
    assert stored(finished.pk) == sorted(Record.objects.get().cards.values_list("artifact", flat=True))


def test_a_further_version_that_is_refused_is_shown_next_to_the_version_before(world: World) -> None:
    run = sealed_run.finished(world.launch())
    seal(run.pk)
    statement_make(run=run, actor=world.rita, field="handling.monitoring", text="monthly")
    run.refresh_from_db()
    version_request(run=run, actor=world.rita, reason="the plan was stated")
    completion(run, "else")
    seal(run.pk)
    (record,) = Record.objects.filter(run=run)
    assert stored(run.pk) == sorted(record.cards.values_list("artifact", flat=True))
    page = html(world.client("rita").get(f"/p/ours/runs/{run.pk}/record/"))
    assert "the plan was stated" in page
    assert "would not pass" in page
