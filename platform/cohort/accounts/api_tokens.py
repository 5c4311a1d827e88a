"""Personal API tokens: made, looked up, revoked.

A token is `cohort_pat_<id>_<secret>`, shown once. Of it only a hash is stored, keyed by the server's secret key, so
that whoever reads the database can neither use nor test one. Its secret has 256 random bits, which nobody guesses:
failed calls are not delayed as sign-ins are, whose passwords people choose, and nobody can hold up another's token.
"""

import logging
import re
import secrets
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.crypto import constant_time_compare, salted_hmac

from cohort.accounts.models import ApiScope, ApiToken, User
from cohort.accounts.quotas import lock_person
from cohort.audit import services as audit
from cohort.audit.entries import clock

MOST = 20
"""Tokens of a person that can be used."""
DEFAULT_DAYS, MAX_DAYS = 90, 366
NAME_CHARS = 80
_TOKEN = re.compile(r"cohort_pat_([0-9a-f]{12})_[0-9a-f]{64}", re.ASCII)
_USED_AGAIN = timedelta(minutes=1)

log = logging.getLogger(__name__)


def live_tokens() -> QuerySet[ApiToken]:
    """Neither revoked nor expired, by the database's clock."""
    return ApiToken.objects.filter(revoked_at=None, expires_at__gt=Now())


@transaction.atomic
def api_token_create(*, user: User, name: str, scope: str, days: int = DEFAULT_DAYS) -> tuple[ApiToken, str]:
    """A token of this person that works for `days`; its text is returned here and never again. Raises ValidationError
    by field, and when the person has as many as a person may."""
    faults: dict[str, str] = {}
    if not 1 <= len(name) <= NAME_CHARS or name != name.strip() or not name.isprintable():
        faults["name"] = f"A token's name has 1 to {NAME_CHARS} letters, digits and signs, none of them unseen."
    if scope not in ApiScope.values:
        faults["scope"] = f"{scope!r} is not a scope; there are {', '.join(ApiScope.values)}."
    if not 1 <= days <= MAX_DAYS:
        faults["days"] = f"A token works for 1 to {MAX_DAYS} days; given {days}."
    if faults:
        raise ValidationError(faults)
    live = live_tokens().filter(user=lock_person(user))
    if live.count() >= MOST:
        raise ValidationError(f"You have {MOST} tokens, and nobody has more. Revoke one that is not needed.")
    if live.filter(name=name).exists():
        raise ValidationError({"name": f"You have a token {name} already. Give this one another name."})
    key_id = secrets.token_hex(6)
    text = f"cohort_pat_{key_id}_{secrets.token_hex(32)}"
    token = ApiToken.objects.create(
        user=user,
        name=name,
        key_id=key_id,
        digest=_digest(text),
        scope=scope,
        expires_at=clock() + timedelta(days=days),
    )
    after = {**shown_in_log(token), "scope": scope, "expires": token.expires_at.isoformat(timespec="seconds")}
    audit.log(actor=audit.who(user), kind="api_token_created", subject=f"user:{user.username}", after=after)
    log.info("API token %s of %r made, scope %s", token.prefix, user.username, scope)
    return token, text


@transaction.atomic
def api_token_revoke(*, token: ApiToken, actor: User) -> None:
    """Refuse it from now on. One that is revoked already stays as it is."""
    if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=Now()):
        before = shown_in_log(token)
        subject = f"user:{token.user.username}"
        audit.log(actor=audit.who(actor), kind="api_token_revoked", subject=subject, before=before)
        log.info("API token %s of %r revoked by %r", token.prefix, token.user.username, actor.username)


def api_token_use(text: str) -> ApiToken | None:
    """The token with this text, with its person, when it may be used now: it is live, and its person is neither
    disabled nor still on a temporary password. Stores when it was last used, to the minute."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    usable = live_tokens().filter(user__is_active=True, user__password_handed_out=False)
    token = usable.select_related("user").filter(key_id=match[1]).first()
    if token is None or not constant_time_compare(token.digest, _digest(text)):
        return None
    earlier = Q(last_used_at=None) | Q(last_used_at__lt=Now() - _USED_AGAIN)
    ApiToken.objects.filter(earlier, pk=token.pk).update(last_used_at=Now())
    return token


def shown_in_log(token: ApiToken) -> dict[str, str]:
    """What the audit log says of a token, also of what was done with it."""
    return {"name": token.name, "prefix": token.prefix}


def _digest(text: str) -> str:
    return salted_hmac("cohort.accounts.api_tokens", text, algorithm="sha256").hexdigest()
