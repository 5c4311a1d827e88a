"""Reading the pages of a run as a person would."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from unittest.mock import patch

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.runs.models import Run
from tests.web.pages import html


def page_of(client: Client, run: Run, tab: str = "", **query: str) -> str:
    response = client.get(f"/p/ours/runs/{run.pk}/{tab}", query)
    assert response.status_code in (200, 286)
    return html(response)


def words(page: str) -> str:
    """The text of the page, as a person reads it."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).replace("\u00a0", " ").split())


def freeze(moment: datetime) -> AbstractContextManager[object]:
    """The clock of the pages stands still."""
    return patch("django.utils.timezone.now", lambda: moment)


def queries(do: Callable[[], object]) -> int:
    """How many the database is asked."""
    with CaptureQueriesContext(connection) as captured:
        do()
    return len(captured)
