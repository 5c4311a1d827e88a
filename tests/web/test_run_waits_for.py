"""What the trainer's watchdog says, on the run's page until it is over, and among its events for good."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import User
from cohort.runs.models import Attempt, RunEvent
from tests.web.run_rows import Maker

pytestmark = pytest.mark.django_db
WORDS = "waits for 5 min: sampling, step 12: 37 of 64 completions ended"


def said(attempt: Attempt, seq: int, message: str, **data: Any) -> None:
    RunEvent.objects.create(
        run=attempt.run,
        attempt=attempt,
        seq=seq,
        at=timezone.now(),
        actor="trainer",
        kind="waiting",
        message=message,
        data=data,
    )


def test_said_until_it_is_over(client_for: Callable[[User], Client], bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt, client = maker.attempt(run), client_for(bob)
    address = f"/p/ours/runs/{run.pk}/"
    said(attempt, 1, WORDS, doing="sampling", seconds=300.0, moves=False)
    assert f"The trainer {WORDS}" in client.get(address).content.decode()
    said(attempt, 2, "sampling goes on after 6 min", doing="sampling", seconds=360.0, over=True)
    assert "The trainer waits" not in client.get(address).content.decode()
    said(attempt, 3, WORDS, doing="sampling", seconds=300.0, moves=False)
    Attempt.objects.filter(pk=attempt.pk).update(state="lost", ended_at=timezone.now())
    assert "The trainer waits" not in client.get(address).content.decode()
    assert client.get(f"{address}events/").content.decode().count("37 of 64 completions ended") == 2
