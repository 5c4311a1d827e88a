"""Cancelling a run and launching a draft: who may, what happens, what is said."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client

from cohort.accounts.models import User
from cohort.governance.services import seal_failed
from cohort.runs.models import Attempt, Run, RunEvent
from tests.web.run_rows import Maker

ClientFor = Callable[[User], Client]


def cancel(client: Client, run: Run, **data: str):  # type: ignore[no-untyped-def]
    return client.post(f"/p/ours/runs/{run.pk}/cancel/", data, follow=True)


def test_a_waiting_run_is_cancelled_at_once(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    page = cancel(client_for(oscar), run, reason="wrong dataset").content.decode()
    run.refresh_from_db()
    assert (run.state, run.reason) == ("cancelled", "Stopped by oscar before it started: wrong dataset")
    assert "adder is cancelled. It had not started." in page
    assert "Cancelled: Stopped by oscar before it started: wrong dataset. What had been" in page
    assert RunEvent.objects.get(run=run, data__to="cancelled").actor == "user:oscar"


def test_a_live_run_is_asked_to_stop(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="training")
    maker.attempt(run)
    page = cancel(client_for(oscar), run).content.decode()
    run.refresh_from_db()
    assert (run.state, run.desired) == ("training", "cancel")
    assert "is being cancelled: the worker stops the trainer" in page
    assert "cancel asked for" in page
    assert 'id="cancel-run"' not in page, "asking twice changes nothing, so it is not offered"


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "sealing"])
def test_an_ended_run_cannot_be_cancelled_and_says_why(
    client_for: ClientFor, oscar: User, maker: Maker, state: str
) -> None:
    run = maker.run(state=state)
    page = cancel(client_for(oscar), run).content.decode()
    run.refresh_from_db()
    assert run.state == state
    assert "Nothing was done" in page
    assert ("only waits for its record" if state == "sealing" else "already ended") in page
    assert 'id="cancel-run"' not in page


def test_a_run_whose_record_cannot_be_made_is_ended_without_one(
    client_for: ClientFor, oscar: User, maker: Maker
) -> None:
    run = maker.run(state="sealing")
    maker.attempt(run, state="finished")
    address = f"/p/ours/runs/{run.pk}/"
    assert 'id="give-up-run"' not in client_for(oscar).get(address).content.decode()
    seal_failed(run=run, reason="The record could not be sealed: the card is too large")
    assert 'id="give-up-run"' in client_for(oscar).get(address).content.decode()
    page = cancel(client_for(oscar), run).content.decode()
    run.refresh_from_db()
    assert (run.state, run.error_code) == ("failed", "not_sealed")
    assert run.reason == (
        "Trained; ended without a record by oscar. The record could not be sealed: the card is too large"
    )
    assert "has ended without a record" in page


def test_a_run_whose_record_nobody_makes_is_ended_without_one(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    """As when the process that makes it is killed, or there is none: then no reason is ever written."""
    run = maker.run(state="sealing")
    attempt, client, address = maker.attempt(run, state="finished"), client_for(oscar), f"/p/ours/runs/{run.pk}/"
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=Now() - timedelta(minutes=9))
    assert 'id="give-up-run"' not in client.get(address).content.decode()
    assert "only waits for its record" in cancel(client, run).content.decode()
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=Now() - timedelta(minutes=11))
    page = client.get(address).content.decode()
    assert 'id="give-up-run"' in page
    assert "Its record was asked for, and nobody has answered for" in page
    assert "its record was asked for and has not come" in page
    cancel(client, run, reason="enough")
    run.refresh_from_db()
    assert (run.state, run.error_code) == ("failed", "not_sealed")
    assert run.reason.startswith(
        "Trained; ended without a record by oscar: enough. Its record was asked for, and within 10 minutes nobody "
        "answered"
    )


def test_htmx_gets_a_redirect_that_it_follows(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    response = client_for(oscar).post(f"/p/ours/runs/{run.pk}/cancel/", headers={"HX-Request": "true"})
    assert response.headers["HX-Redirect"] == f"/p/ours/runs/{run.pk}/"


def test_the_button_asks_first_and_says_what_happens(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="training")
    maker.attempt(run)
    page = client_for(oscar).get(f"/p/ours/runs/{run.pk}/").content.decode()
    asked = "Cancel this run? The trainer is stopped. What has been recorded stays, and the run can be retried later"
    assert f'hx-confirm="{asked}' in page


@pytest.mark.parametrize("who", ["bob", "rita"])
def test_viewers_and_reviewers_may_not(
    request: pytest.FixtureRequest, client_for: ClientFor, maker: Maker, who: str
) -> None:
    person: User = request.getfixturevalue(who)
    run = maker.run(state="queued")
    assert cancel(client_for(person), run).status_code == 403
    assert client_for(person).post(f"/p/ours/runs/{run.pk}/submit/").status_code == 403
    run.refresh_from_db()
    assert run.state == "queued"
    page = client_for(person).get(f"/p/ours/runs/{run.pk}/").content.decode()
    assert 'id="cancel-run"' not in page
    assert 'id="clone-run"' not in page


def test_a_stranger_gets_404(client_for: ClientFor, charlie: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    assert cancel(client_for(charlie), run).status_code == 404
    assert client_for(charlie).post(f"/p/theirs/runs/{run.pk}/cancel/").status_code == 404
    run.refresh_from_db()
    assert run.state == "queued"


@pytest.mark.parametrize("action", ["cancel", "submit"])
def test_only_by_post(client_for: ClientFor, oscar: User, maker: Maker, action: str) -> None:
    run = maker.run()
    assert client_for(oscar).get(f"/p/ours/runs/{run.pk}/{action}/").status_code == 405


def test_a_post_without_its_token_is_refused(oscar: User, maker: Maker) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(oscar, backend="django.contrib.auth.backends.ModelBackend")
    run = maker.run(state="queued")
    assert client.post(f"/p/ours/runs/{run.pk}/cancel/").status_code == 403


def test_a_draft_is_launched(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run()
    client = client_for(oscar)
    assert 'id="submit-run"' in client.get(f"/p/ours/runs/{run.pk}/").content.decode()
    page = client.post(f"/p/ours/runs/{run.pk}/submit/", follow=True).content.decode()
    run.refresh_from_db()
    assert run.state == "queued"
    assert "adder is in the queue" in page
    again = client.post(f"/p/ours/runs/{run.pk}/submit/", follow=True).content.decode()
    assert "Nothing was done: adder is queued, not a draft" in again


def test_a_reason_with_a_character_that_cannot_be_stored(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    assert cancel(client_for(oscar), run, reason="wrong\0model").status_code == 200
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert "wrong\ufffdmodel" in run.reason
