"""What the tests of records share: everybody and everything of the project `ours`, made when it is first asked for."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from cohort.base import artifacts
from cohort.records.cards import pdf
from cohort.records.models import Record
from cohort.runs.models import Run
from tests.factories import sealed_run
from tests.web.records.records import content_of, stored


class World:
    """`world.alice`, `world.launch` and so on are the fixtures of these names."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return self._request.getfixturevalue(name)

    def client(self, name: str) -> Client:
        """A browser in which this person is signed in."""
        client: Client = self.client_for(getattr(self, name))
        return client


def in_thread(work: Callable[[], object]) -> Future[object]:
    """The work, begun in a thread with a database connection of its own; its result raises what the work raised."""

    def and_close() -> object:
        try:
            return work()
        finally:
            connection.close()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(and_close)
    pool.shutdown(wait=False)
    return future


@pytest.fixture
def world(request: pytest.FixtureRequest, db: None) -> World:
    return World(request)


@pytest.fixture
def quick_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seals without setting the card's PDF, which takes half of the time; test_card_copies.py looks at it."""
    monkeypatch.setattr(pdf, "card_pdf", lambda *_: b"%PDF-1.7 %%EOF")


@pytest.fixture
def finished(launch: Callable[..., Run]) -> Run:
    return sealed_run.finished(launch())


@pytest.fixture
def sealed(db: None) -> Iterator[Record]:
    """The record of a run that finished, sealed once for all tests. Whatever a test does to the files of its cards,
    after it they are as they were."""
    record = Record.objects.get()
    cards = {card.artifact: content_of(card) for card in record.cards.all()}
    yield record
    for key in stored(record.run_id):
        if key not in cards:
            artifacts.remove(key)
    for key, content in cards.items():
        artifacts.put(key, [content])
