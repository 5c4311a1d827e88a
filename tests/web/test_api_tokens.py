"""Personal API tokens: made, shown once, used, and refused once they may not be used any more."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client, override_settings
from django.utils import timezone

from cohort.accounts.api_tokens import MOST, api_token_create, api_token_revoke, api_token_use
from cohort.accounts.models import ApiToken, User
from cohort.accounts.people import user_disable, user_enable
from cohort.accounts.services import password_change, password_hand_out
from cohort.audit.models import AuditEntry
from tests.web.conftest import ClientFor
from tests.web.control import at_once, fresh
from tests.web.pages import html
from tests.web.run_page import queries

pytestmark = pytest.mark.django_db
TOKENS = "/tokens/"
GIVEN = {"name": "nightly", "scope": "launch", "days": "30"}


def made(user: User, name: str = "ci", scope: str = "launch", days: int = 1) -> tuple[ApiToken, str]:
    return api_token_create(user=user, name=name, scope=scope, days=days)


def test_a_token_is_shown_once_and_stored_as_a_hash(admin: Client, alice: User) -> None:
    response = admin.post(TOKENS, GIVEN)
    assert response.status_code == 201
    shown = re.search(r'id="token">(cohort_pat_[0-9a-f]{12}_[0-9a-f]{64})<', html(response))
    assert shown is not None
    text, token = shown[1], ApiToken.objects.get()
    assert (token.user, token.name, token.scope) == (alice, "nightly", "launch")
    assert timedelta(days=29) < token.expires_at - timezone.now() < timedelta(days=30)
    listed = html(admin.get(TOKENS))
    assert token.prefix in listed
    secret = text.removeprefix(token.prefix).lstrip("_")
    assert secret not in listed
    assert secret not in str([list(ApiToken.objects.values()), list(AuditEntry.objects.values_list("body"))])
    assert api_token_use(text) == token


def test_the_list_is_ones_own(admin: Client, operator: Client, alice: User) -> None:
    token, text = made(alice)
    assert token.prefix not in html(operator.get(TOKENS))
    for method in (operator.get, operator.post):
        assert method(f"{TOKENS}{token.pk}/revoke/").status_code == 404
    assert admin.get(f"{TOKENS}{token.pk}/revoke/").status_code == 200
    assert api_token_use(text), "a look at the question changes nothing"
    page = html(admin.post(f"{TOKENS}{token.pk}/revoke/", follow=True))
    assert "ci is revoked" in page
    assert 'badge is-wrong">revoked' in page
    assert api_token_use(text) is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": "a\u202eb"}, "name"),
        ({"scope": "admin"}, "scope"),
        ({"days": "0"}, "days"),
        ({"days": "367"}, "days"),
        ({"days": "9" * 400}, "days"),
        ({"name": "taken"}, "name"),
    ],
)
def test_a_refusal_names_its_field(admin: Client, alice: User, given: dict[str, str], field: str) -> None:
    made(alice, "taken")
    response = admin.post(TOKENS, GIVEN | given)
    assert response.status_code == 422
    assert f'id="id_{field}_error"' in html(response)
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize(
    ("given", "field"), [({"days": 0}, "days"), ({"days": 367}, "days"), ({"scope": "x"}, "scope")]
)
def test_the_service_checks_for_itself(alice: User, given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        api_token_create(user=alice, **{"name": "ci", "scope": "read", **given})
    assert set(refused.value.message_dict) == {field}


@pytest.mark.django_db(transaction=True)
def test_at_once_no_more_than_a_person_may_have(alice: User) -> None:
    for number in range(MOST - 2):
        made(alice, f"n{number}")
    acts = [lambda number=number: made(fresh(alice), f"more {number}") for number in range(4)]
    assert sum(at_once(*acts)) == 2
    api_token_revoke(token=ApiToken.objects.filter(name="n0").get(), actor=alice)
    made(alice, "in its place")


def test_what_is_no_token_or_may_not_be_used(alice: User, bob: User) -> None:
    token, text = made(alice)
    other, theirs = made(bob)
    last = "0" if text[-1] != "0" else "1"
    swapped = theirs.replace(other.key_id, token.key_id)
    for wrong in (
        "",
        "x",
        text[:-1],
        text + "0",
        text[:-1] + last,
        text.upper(),
        swapped,
        text.replace("_", "-"),
        "\0",
    ):
        assert api_token_use(wrong) is None, wrong
    with override_settings(SECRET_KEY="another"):
        assert api_token_use(text) is None, "who has the rows alone can make none"
    assert api_token_use(text) == token
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert api_token_use(text) is None


def test_of_a_person_who_is_disabled_or_was_given_a_password(client_for: ClientFor, alice: User, bob: User) -> None:
    _, text = made(bob)
    password_hand_out(user=bob)
    assert api_token_use(text) is None
    assert "until you have <a" in html(client_for(fresh(bob)).get(TOKENS))
    password_change(user=fresh(bob), password="a third battery")
    assert api_token_use(text)
    user_disable(user=fresh(bob), actor=alice)
    assert api_token_use(text) is None
    user_enable(user=fresh(bob), actor=alice)
    assert api_token_use(text) is None, "it does not come back with the account"


def test_use_is_stored_to_the_minute(alice: User) -> None:
    token, text = made(alice)

    def used_after(earlier: timedelta | None) -> timedelta | None:
        before = None if earlier is None else timezone.now() - earlier
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=before)
        api_token_use(text)
        token.refresh_from_db()
        return token.last_used_at and before and token.last_used_at - before  # type: ignore[return-value]

    assert used_after(None) is None
    assert token.last_used_at is not None
    assert used_after(timedelta(seconds=30)) == timedelta(0)
    assert used_after(timedelta(seconds=90)) >= timedelta(seconds=90)  # type: ignore[operator]
    api_token_use(text[:-1] + "x")
    assert ApiToken.objects.get().last_used_at == token.last_used_at


def test_the_account_leads_to_the_tokens(admin: Client) -> None:
    assert f'href="{TOKENS}"' in html(admin.get("/password/"))


def test_the_list_costs_the_same_however_many_there_are(admin: Client, alice: User) -> None:
    made(alice)
    few = queries(lambda: admin.get(TOKENS))
    for number in range(10):
        made(alice, f"n{number}")
    assert queries(lambda: admin.get(TOKENS)) == few
