"""Sixty hostile completions, notes, labels and names on every page of review: each page holds what it holds for
harmless ones, nothing acts, and what would hide is marked."""

from itertools import islice

import pytest
from django.test import Client

from cohort.accounts.models import User
from tests.factories.hostile import MARK
from tests.factories.runs import Maker
from tests.web.hostile_pages import TEXTS, faults_of, harmless, read
from tests.web.hostile_review import REVIEW_PAGES, reviewed

pytestmark = pytest.mark.django_db
NO_TEXT = {
    "scatter",
    "re-scores",
    "ready-made filters",
    "samples by re-score",
    "queues",
    "runs",
    "audit",
    "suite",
    "probe cases",
}
"""Pages that may show none of the texts whole."""
REFUSED = {"samples of a search", "samples of a problem", "new queue"}
"""Pages that refuse some of the texts, where they were typed."""


def test_no_page_of_review_holds_more_than_for_harmless_texts(
    admin: Client, maker: Maker, alice: User, rita: User
) -> None:
    like = reviewed(maker, harmless(), [alice, rita])
    allowed: dict[str, set[tuple[str, str]]] = {}
    for name, addresses in REVIEW_PAGES.items():
        statuses = (200, 302, 422) if name in REFUSED else (200,)
        pages = (read(admin, address, statuses=statuses) for address in islice(addresses(like), 15))
        allowed[name] = set().union(*(page.elements for page in pages))
    hostile = reviewed(maker, list(TEXTS.values()), [alice, rita])
    faults: set[tuple[object, ...]] = set()
    for name, addresses in REVIEW_PAGES.items():
        statuses = (200, 302, 422) if name in REFUSED else (200,)
        pages = (read(admin, address, statuses=statuses) for address in addresses(hostile))
        expected = "" if name in NO_TEXT else MARK
        faults |= {(name, *fault) for fault in faults_of(pages, allowed[name], expected=expected)}
    assert sorted(faults, key=str) == []
