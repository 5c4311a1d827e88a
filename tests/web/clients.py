"""Clients in which somebody with a role in `ours` is signed in, as fixtures."""

from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import User

ClientFor = Callable[[User], Client]


@pytest.fixture
def viewer(client_for: ClientFor, bob: User) -> Client:
    return client_for(bob)


@pytest.fixture
def reviewer(client_for: ClientFor, rita: User) -> Client:
    return client_for(rita)


@pytest.fixture
def operator(client_for: ClientFor, oscar: User) -> Client:
    return client_for(oscar)


@pytest.fixture
def admin(client_for: ClientFor, alice: User) -> Client:
    return client_for(alice)


@pytest.fixture
def stranger(client_for: ClientFor, charlie: User) -> Client:
    """An admin of `theirs`."""
    return client_for(charlie)
