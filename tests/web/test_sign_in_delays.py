"""Guessing passwords is slowed by name, by address and by both, and keeps no owner out."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import hashers
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client

from cohort.accounts import sign_in_delays
from cohort.accounts.models import SignInCount, User
from cohort.accounts.sign_in_delays import ADDRESS, LIMITS, NAME, PAIR, CountedSignIn, SignInDelayed, count_sign_in
from cohort.audit.models import AuditEntry
from tests.web.conftest import PASSWORD
from tests.web.pages import html

pytestmark = pytest.mark.django_db
ATTACKER, OWNER = "203.0.113.9", "198.51.100.7"


def sign_in(name: str, password: str = "wrong", *, address: str = ATTACKER) -> int:
    return Client(REMOTE_ADDR=address).post("/login/", {"username": name, "password": password}).status_code


class FakeClock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 26, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, **span: float) -> None:
        self.now += timedelta(**span)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(sign_in_delays, "clock", fake)
    return fake


def wait_of(name: str, address: str) -> float:
    """Seconds; 0 where the sign-in is counted."""
    try:
        count_sign_in(name=name, address=address)
    except SignInDelayed as delayed:
        return delayed.wait.total_seconds()
    return 0.0


def test_failures_double_the_wait_and_the_page_says_until_when(alice: User, clock: FakeClock) -> None:
    assert [sign_in("alice") for _ in range(5)] == [200] * 5
    waits = []
    for _ in range(12):
        waits.append(round(wait_of("alice", ATTACKER)))
        clock.pass_(seconds=waits[-1])
        assert wait_of("alice", ATTACKER) == 0, "one more is counted"
    assert waits[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert waits[-1] == 300, "what was forgiven meanwhile came first"
    response = Client(REMOTE_ADDR=ATTACKER).post("/login/", {"username": "alice", "password": PASSWORD})
    assert response.status_code == 429, "the right password must not open it now"
    assert 299 <= int(response.headers["Retry-After"]) <= 300
    assert "5\u00a0min" in html(response)
    assert not Session.objects.exists()
    clock.pass_(seconds=300)
    assert sign_in("alice", PASSWORD) == 302


def test_a_refused_sign_in_costs_no_hashing_and_is_not_counted(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        sign_in("alice")
    before = list(SignInCount.objects.order_by("key").values())
    hashed: list[str] = []
    hasher = hashers.get_hasher()
    monkeypatch.setattr(type(hasher), "encode", lambda *_, **__: hashed.append("encoded"))
    monkeypatch.setattr(type(hasher), "verify", lambda *_, **__: hashed.append("verified"))
    assert (sign_in("alice"), hashed) == (429, [])
    assert list(SignInCount.objects.order_by("key").values()) == before


def test_spraying_many_names_from_one_address_is_slowed(alice: User) -> None:
    codes = [sign_in(f"name-{number}") for number in range(100)]
    assert codes == [200] * 20 + [429] * 80
    assert sign_in("alice", PASSWORD) == 429
    assert sign_in("alice", PASSWORD, address=OWNER) == 302


@pytest.mark.parametrize("known", [True, False])
def test_failures_of_others_at_a_name_never_keep_its_owner_out(alice: User, known: bool, clock: FakeClock) -> None:
    if known:
        assert sign_in("alice", PASSWORD, address=OWNER) == 302
    for address in (ATTACKER, "203.0.113.10", "203.0.113.11", "203.0.113.12"):
        for _ in range(5):
            sign_in("alice", address=address)
            clock.pass_(seconds=30)
    sign_in("alice", address="203.0.113.13")
    if not known:
        assert 25 < wait_of("alice", OWNER) <= 30
        clock.pass_(seconds=30)
    assert sign_in("alice", PASSWORD, address=OWNER) == 302


def test_an_address_that_is_known_for_a_name_is_held_by_its_own_failures(alice: User, clock: FakeClock) -> None:
    sign_in("alice", PASSWORD, address=OWNER)
    for _ in range(5):
        sign_in("alice", address=OWNER)
    assert 0 < wait_of("alice", OWNER) <= 1
    clock.pass_(days=1)
    for number in range(20):
        sign_in(f"name-{number}", address=OWNER)
    assert sign_in("alice", PASSWORD, address=OWNER) == 302
    clock.pass_(days=31)
    for number in range(20):
        sign_in(f"name-{number}", address=OWNER)
    assert sign_in("alice", PASSWORD, address=OWNER) == 429, "it is not known for ever"


def test_a_success_forgets_the_failures_of_its_name_at_its_address_alone(alice: User, bob: User) -> None:
    for _ in range(4):
        sign_in("alice")
    assert sign_in("alice", PASSWORD) == 302
    assert [sign_in("alice") for _ in range(4)] == [200] * 4
    for number in range(12):
        sign_in(f"name-{number}")
    assert sign_in("bob", PASSWORD) == 429, "the address has 20 failures, and its successes forgave none"


def test_a_success_takes_no_delay_away_from_an_address(alice: User) -> None:
    """Else who has an account could sign in between two guesses."""
    sign_in("alice", PASSWORD)
    for number in range(20):
        sign_in(f"name-{number}")
    assert sign_in("alice", PASSWORD) == 302
    assert sign_in("name-20") == 429


def test_failures_are_forgiven_with_time(alice: User, clock: FakeClock) -> None:
    for _ in range(4):
        sign_in("alice")
    clock.now += LIMITS[PAIR].forgiven * 3
    assert [sign_in("alice") for _ in range(4)] == [200] * 4
    assert sign_in("alice") == 429
    assert LIMITS[ADDRESS].failures(25, timedelta(hours=2)) == 1


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:203.0.113.9", "203.0.113.9", True),
        ("203.0.113.9", "203.0.113.10", False),
    ],
)
def test_who_counts_as_one_address(db: None, first: str, second: str, same: bool) -> None:
    for _ in range(5):
        wait_of("alice", first)
    assert (wait_of("alice", second) > 0) is same


def test_neither_names_nor_addresses_are_stored_and_counts_go_with_time(alice: User, clock: FakeClock) -> None:
    sign_in("hunter2")
    assert not [row for row in SignInCount.objects.values_list("key") if "hunter2" in str(row) or ATTACKER in str(row)]
    clock.pass_(days=2)
    sign_in("alice", PASSWORD, address=OWNER)
    assert SignInCount.objects.count() == 3
    clock.pass_(days=31)
    sign_in("bob", PASSWORD, address=OWNER)
    assert SignInCount.objects.filter(signed_in_at=None).count() == 2
    assert SignInCount.objects.count() == 3


def test_a_server_that_fails_is_no_failure_of_the_person(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(hashers.get_hasher()), "verify", broken)
    with pytest.raises(MemoryError):
        sign_in("alice", PASSWORD)
    assert set(SignInCount.objects.values_list("failures", flat=True)) == {0.0}


def test_the_audit_log_has_each_failure_and_the_first_delay(alice: User) -> None:
    for _ in range(8):
        sign_in("alice")
    entries = AuditEntry.objects.filter(kind__startswith="sign_in").order_by("pk").values_list("kind", "subject")
    assert list(entries) == [("sign_in_failed", "user:alice")] * 5 + [("sign_in_delayed", "user:alice")]


@pytest.mark.django_db(transaction=True)
def test_many_at_once_pass_no_limit() -> None:
    def guess(_: int) -> CountedSignIn | None:
        try:
            return count_sign_in(name="alice", address=ATTACKER)
        except SignInDelayed:
            return None
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        counted = [each for each in pool.map(guess, range(24)) if each]
    assert len(counted) == LIMITS[PAIR].free
    assert SignInCount.objects.count() == 3
    assert NAME not in counted[-1].newly_delayed
