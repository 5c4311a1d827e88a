"""Slows the guessing of passwords: each sign-in that fails makes the next ones wait longer, and nobody is locked out.

Sign-ins are counted by name and address together, by address and by name, before the password is looked at, so that
many at once pass no limit and a refused one costs no hashing. Failures of others at a name delay its owner little: an
address from which the name signed in lately is held by its own failures alone, and any other waits half a minute at
most. Neither names nor addresses are stored, only keyed hashes of them.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, ip_address, ip_network

from django.db import connection, transaction
from django.db.models import F, Q, Value
from django.db.models.functions import Greatest
from django.utils.crypto import salted_hmac

from cohort.accounts.models import SignInCount
from cohort.audit.entries import MOST, clock, log, many

KNOWN_FOR = timedelta(days=30)
"""How long an address is held by its own failures alone after the name signed in from there."""
_UNKNOWN_FOR = timedelta(days=1)
"""How long a count is stored where nobody signed in; all of it is forgiven by then."""


@dataclass(frozen=True)
class Limit:
    free: int
    """The failure that brings the first delay, of one second; each further one doubles it."""
    longest: timedelta
    forgiven: timedelta
    """After so long one failure no longer counts."""

    def failures(self, before: float, since: timedelta) -> float:
        """What is counted after one more, `since` after the last; no more than what the longest delay needs."""
        left = max(0.0, before - since / self.forgiven)
        return min(left + 1, self.free + math.ceil(math.log2(self.longest.total_seconds())))

    def delay(self, failures: float) -> timedelta:
        over = round(failures) - self.free
        return min(timedelta(seconds=2**over), self.longest) if over >= 0 else timedelta(0)


PAIR, ADDRESS, NAME = "name and address", "address", "name"
LIMITS = {
    PAIR: Limit(free=5, longest=timedelta(minutes=5), forgiven=timedelta(minutes=10)),
    ADDRESS: Limit(free=20, longest=timedelta(minutes=5), forgiven=timedelta(minutes=3)),  # an office may share one
    NAME: Limit(free=10, longest=timedelta(seconds=30), forgiven=timedelta(minutes=10)),
}


@dataclass(frozen=True)
class CountedSignIn:
    """A sign-in whose password may be checked, counted as a failure until `record_success` or `withdraw`."""

    keys: dict[str, str]
    before: dict[str, tuple[datetime, datetime]]
    """By key: until when it was delayed before this one, and until when it is now."""
    newly_delayed: tuple[str, ...]
    """Limits whose first delay this one brought."""


class SignInDelayed(Exception):
    """Refused without a look at the password; `wait` is how long it is refused still."""

    def __init__(self, wait: timedelta) -> None:
        super().__init__(f"sign-in is delayed for another {wait}")
        self.wait = wait


def count_sign_in(*, name: str, address: str) -> CountedSignIn:
    """Count a sign-in of this name from this address (REMOTE_ADDR). Raises SignInDelayed, and counts nothing then."""
    keys = _keys(name, address)
    _require_undelayed(keys, {row.key: row for row in SignInCount.objects.filter(key__in=keys.values())}, clock())
    with transaction.atomic():
        _lock()
        rows, now = {row.key: row for row in SignInCount.objects.filter(key__in=keys.values())}, clock()
        _require_undelayed(keys, rows, now)
        before, newly = {}, []
        for limit, key in keys.items():
            row = rows.get(key) or SignInCount(key=key, failures=0, counted_at=now, delayed_until=now)
            failures = LIMITS[limit].failures(row.failures, now - row.counted_at)
            delay = LIMITS[limit].delay(failures)
            if delay and not LIMITS[limit].delay(row.failures):
                newly.append(limit)
            until = max(row.delayed_until, now + delay)
            before[key] = row.delayed_until, until
            rows[key], row.failures, row.counted_at, row.delayed_until = row, failures, now, until
        changed = ["failures", "counted_at", "delayed_until"]
        SignInCount.objects.bulk_create(
            rows.values(), update_conflicts=True, unique_fields=["key"], update_fields=changed
        )
    return CountedSignIn(keys, before, tuple(newly))


def record_failure(counted: CountedSignIn, *, subject: str) -> None:
    """The password was wrong: it stays counted, and a delay that begins is in the audit log."""
    if counted.newly_delayed and not many(MOST, kind="sign_in_delayed"):
        log(actor="platform", kind="sign_in_delayed", subject=subject, data={"by": list(counted.newly_delayed)})


@transaction.atomic
def record_success(counted: CountedSignIn) -> None:
    """Forget the failures of this name from this address, which is known from now on; the others stay."""
    withdraw(counted)
    now = clock()
    SignInCount.objects.filter(key=counted.keys[PAIR]).update(failures=0, delayed_until=now, signed_in_at=now)
    unknown = Q(signed_in_at=None, counted_at__lt=now - _UNKNOWN_FOR)
    SignInCount.objects.filter(unknown | Q(counted_at__lt=now - KNOWN_FOR)).delete()


@transaction.atomic
def withdraw(counted: CountedSignIn) -> None:
    """Count it no longer. A delay that others have brought meanwhile stays."""
    _lock()
    for key, (earlier, until) in counted.before.items():
        row = SignInCount.objects.filter(key=key)
        row.update(failures=Greatest(F("failures") - 1, Value(0.0)))
        row.filter(delayed_until=until).update(delayed_until=earlier)


def _require_undelayed(keys: dict[str, str], rows: dict[str, SignInCount], now: datetime) -> None:
    pair = rows.get(keys[PAIR])
    known = pair is not None and pair.signed_in_at is not None and pair.signed_in_at > now - KNOWN_FOR
    binding = [keys[PAIR]] if known else keys.values()
    wait = max((rows[key].delayed_until - now for key in binding if key in rows), default=timedelta(0))
    if wait > timedelta(0):
        raise SignInDelayed(wait)


def _keys(name: str, address: str) -> dict[str, str]:
    """By limit."""
    network = _network(address)
    parts = {PAIR: (name, network), ADDRESS: (network,), NAME: (name,)}
    return {
        limit: salted_hmac(f"cohort sign-in by {limit}", "\0".join(part), algorithm="sha256").hexdigest()
        for limit, part in parts.items()
    }


def _network(address: str) -> str:
    """What one party is given: an IPv4 address, the /64 of an IPv6 one."""
    parsed = ip_address(address)
    if not isinstance(parsed, IPv4Address) and (mapped := parsed.ipv4_mapped) is not None:
        parsed = mapped
    return str(parsed if isinstance(parsed, IPv4Address) else ip_network((int(parsed), 64), strict=False))


def _lock() -> None:
    """One count at a time, until the end of the transaction; sign-ins are rare, and refused ones do not come here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('cohort sign-in', 0))")
