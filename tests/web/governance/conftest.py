"""What the tests of records share: everybody and everything of the project `ours`, made when it is first asked for."""

from typing import Any

import pytest
from django.test import Client


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
