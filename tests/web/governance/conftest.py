"""What the tests of records share: everybody and everything of the project `ours`, made when it is first asked for."""

from typing import Any

import pytest
from django.test import Client

from cohort.governance.cards import pdf


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


@pytest.fixture
def world(request: pytest.FixtureRequest, db: None) -> World:
    return World(request)


@pytest.fixture
def quick_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seals without setting the card's PDF, which takes half of the time; test_card_copies.py looks at it."""
    monkeypatch.setattr(pdf, "card_pdf", lambda _: b"%PDF-1.7 %%EOF")
