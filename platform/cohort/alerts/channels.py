"""A project's channels: where its alerts are sent, with the secrets of webhooks and what may be reached."""

import secrets
import socket
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import Project, User
from cohort.accounts.people import manages_server
from cohort.accounts.quotas import lock_project
from cohort.alerts.models import AlertChannel, AlertDelivery, ChannelKind
from cohort.audit import services as audit
from cohort.base.storable import storable
from grpo_core.runtime.addresses import non_public

MOST_CHANNELS = 20
"""Of a project."""
LONGEST_ADDRESS = 500
_SWITCHED_OFF = "The channel was switched off before it was delivered."


def channels_of(project: Project) -> QuerySet[AlertChannel]:
    return AlertChannel.objects.filter(project=project).order_by("name")


@transaction.atomic
def channel_create(
    *,
    project: Project,
    actor: User,
    name: str,
    kind: str,
    address: str,
    private: bool = False,
    enabled: bool = True,
) -> AlertChannel:
    """A webhook's secret is made with it (`AlertChannel.secret`). Raises ValidationError by field, also for `private`
    by somebody who does not manage the server."""
    project = lock_project(project)
    if kind not in ChannelKind.values:
        raise ValidationError({"kind": f"{kind!r} is no kind of channel: {', '.join(ChannelKind.values)} are."})
    channel = AlertChannel(project=project, kind=kind, created_by=actor)
    fields = _checked(channel, actor, name=name, address=address, private=private, enabled=enabled)
    if AlertChannel.objects.filter(project=project).count() >= MOST_CHANNELS:
        raise ValidationError(f"{project.name} has {MOST_CHANNELS} channels, which is the most. Remove one first.")
    for field, value in fields.items():
        setattr(channel, field, value)
    channel.salt = secrets.token_hex(16) if kind == ChannelKind.WEBHOOK else ""
    channel.save()
    _logged(channel, actor, "alert_channel_created", after={"kind": kind, **_shown(channel)})
    return channel


@transaction.atomic
def channel_change(
    *, channel: AlertChannel, actor: User, name: str, address: str, private: bool = False, enabled: bool = True
) -> None:
    """All but its kind. What waits to be sent by a channel that is switched off is given up. Raises ValidationError as
    `channel_create` does."""
    lock_project(channel.project)
    channel.refresh_from_db()
    before, address_before = _shown(channel), channel.address
    for field, value in _checked(channel, actor, name=name, address=address, private=private, enabled=enabled).items():
        setattr(channel, field, value)
    after = _shown(channel)
    if (after, channel.address) == (before, address_before):
        return
    channel.disabled_why = ""
    channel.save()
    if not channel.enabled:
        deliveries_drop(channel, _SWITCHED_OFF)
    _logged(channel, actor, "alert_channel_changed", before=before, after=after)


@transaction.atomic
def channel_secret_renew(*, channel: AlertChannel, actor: User) -> AlertChannel:
    """Another secret takes the place of a webhook's at once. Raises ValidationError for a channel without one."""
    if channel.kind != ChannelKind.WEBHOOK:
        raise ValidationError(f"{channel.name} sends e-mail, which is not signed.")
    channel.salt = secrets.token_hex(16)
    channel.save(update_fields=["salt"])
    _logged(channel, actor, "alert_channel_secret_renewed")
    return channel


@transaction.atomic
def channel_remove(*, channel: AlertChannel, actor: User) -> None:
    """What it has sent stays with the alerts; what waits is given up."""
    deliveries_drop(channel, "The channel was removed before it was delivered.")
    _logged(channel, actor, "alert_channel_removed", before={"kind": channel.kind, **_shown(channel)})
    channel.delete()


@transaction.atomic
def channel_refused(*, channel: AlertChannel, why: str) -> None:
    """The receiver wants no more: the platform switches the channel off, and a person may switch it on again."""
    AlertChannel.objects.filter(pk=channel.pk).update(enabled=False, disabled_why=why)
    deliveries_drop(channel, why)
    audit.log(
        actor="platform",
        kind="alert_channel_disabled",
        subject=f"alert_channel:{channel.pk}",
        project=channel.project,
        reason=why,
    )


def deliveries_drop(channel: AlertChannel, why: str) -> None:
    """Give up what waits to be sent by the channel."""
    waiting = AlertDelivery.objects.filter(channel=channel, next_try_at__isnull=False)
    waiting.update(next_try_at=None, error=why)


def _checked(
    channel: AlertChannel, actor: User, *, name: str, address: str, private: bool, enabled: bool
) -> dict[str, Any]:
    name, address = storable(" ".join(name.split())), storable(address.strip())
    faults: dict[str, str] = {}
    others = AlertChannel.objects.filter(project=channel.project, name=name).exclude(pk=channel.pk)
    if not name:
        faults["name"] = "A channel needs a name."
    elif len(name) > 60:
        faults["name"] = f"At most 60 characters; these are {len(name)}."
    elif others.exists():
        faults["name"] = "The project has a channel with this name. Choose another, or edit that one."
    is_email = channel.kind == ChannelKind.EMAIL
    if why := _email_fault(address) if is_email else _url_fault(address):
        faults["address"] = why
    elif not is_email and not private and (kind := _private_kind(address)):
        faults["address"] = (
            f"This address is {kind}, and the channel may not reach such. Give one on the public internet, or have who "
            "manages the server allow it."
        )
    if private and is_email:
        faults["private"] = "E-mail goes through the server's mail relay, wherever the receiver is. Leave it off."
    elif not faults and private and (not channel.private or address != channel.address) and not manages_server(actor):
        faults["private"] = (
            "Only who manages the server may let a webhook reach a private address: it could call services that trust "
            "this network. Ask one of them, or give a public address."
        )
    if faults:
        raise ValidationError(faults)
    return {"name": name, "address": address, "private": private, "enabled": enabled}


def _url_fault(address: str) -> str:
    """Why it is no address of a webhook; where its name leads is looked up at each call."""
    if len(address) > LONGEST_ADDRESS:
        return f"At most {LONGEST_ADDRESS} characters; these are {len(address)}."
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        return f"This is no web address: {error}."
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or any(map(str.isspace, address)):
        return "This is no web address. Give one, as https://example.org/hooks/cohort."
    if parts.username is not None or parts.password is not None:
        return "The address holds a user name or a password, which pages would show. Leave them out: calls are signed."
    return ""


def _private_kind(address: str) -> str:
    """Which kind of private address a webhook's is, where it is written as a number; empty for a public one, and for
    a name, which is looked up at each call."""
    host = urlsplit(address).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return non_public("127.0.0.1") or ""
    try:
        return non_public(host if ":" in host else socket.inet_ntoa(socket.inet_aton(host))) or ""
    except (OSError, ValueError):
        return ""


def _email_fault(address: str) -> str:
    try:
        validate_email(address)
    except ValidationError:
        return "This is no e-mail address. Give one, as team@example.org."
    return ""


def _shown(channel: AlertChannel) -> dict[str, Any]:
    """For the audit log, which is for ever."""
    return {
        "name": channel.name,
        "address": channel.masked_address,
        "private": channel.private,
        "enabled": channel.enabled,
    }


def _logged(channel: AlertChannel, actor: User, kind: str, **entry: Any) -> None:
    audit.log(
        actor=audit.who(actor), kind=kind, subject=f"alert_channel:{channel.pk}", project=channel.project, **entry
    )
