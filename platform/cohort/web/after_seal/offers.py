"""What a person may add to a record: one entry of a table for each action, and the form for it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from cohort.accounts.models import Role, User, reaches
from cohort.records.after_seal import services
from cohort.records.after_seal.rules import SignRole, Standing, may_not_sign
from cohort.records.models import EntryKind, Record, RecordEntry
from cohort.web.access import OVERRIDES_FLAGS
from cohort.web.after_seal import forms


@dataclass(frozen=True)
class Action:
    title: str
    help: str
    form: type[forms.LifeForm]
    service: Callable[..., RecordEntry]
    done: str
    """Message shown once the entry is stored."""
    at_least: Role = Role.REVIEWER
    button: str = "Add"


ACTIONS = {
    "sign_off": Action(
        title="Sign off",
        help="approve or reject, as operator or as independent reviewer",
        form=forms.SignOffForm,
        service=services.sign_off,
        button="Sign",
        done="Your sign-off is written down.",
    ),
    "incident": Action(
        title="Report an incident",
        help="something went wrong with the model",
        form=forms.IncidentForm,
        service=services.incident,
        button="Report",
        done="The incident is written down.",
    ),
    "feedback": Action(
        title="Add feedback",
        help="what somebody said of the model",
        form=forms.FeedbackForm,
        service=services.feedback,
        done="The feedback is written down.",
    ),
    "monitoring": Action(
        title="Add a monitoring note",
        help="what watching it in use has shown",
        at_least=Role.OPERATOR,
        form=forms.MonitoringForm,
        service=services.monitoring,
        done="The monitoring note is written down.",
    ),
    "override": Action(
        title="Override a flag",
        help="why a flag that a monitor raised does not count",
        at_least=OVERRIDES_FLAGS,
        form=forms.OverrideForm,
        service=services.override,
        button="Override",
        done="The override is written down.",
    ),
    "revoke": Action(
        title="Revoke this record",
        help="nobody may rely on it any more; cannot be undone",
        at_least=Role.ADMIN,
        form=forms.RevokeForm,
        service=services.revoke,
        button="Revoke",
        done="The record is revoked. Every card downloaded from now on says so.",
    ),
}


_ENDED_BY_REVOCATION = ("sign_off", "revoke")


@dataclass(frozen=True)
class Offer:
    name: str
    action: Action
    form: forms.LifeForm | None
    """None when this person cannot do it; `why_not` gives the reasons."""
    why_not: tuple[str, ...] = ()
    """Also why a part of it is not offered, as one of the two roles of a sign-off."""
    open: bool = False
    flags: tuple[str, ...] = ()
    """Of an override: the flags that the record holds, to choose from."""


def offers(
    *,
    record: Record,
    entries: Sequence[RecordEntry],
    standing: Standing,
    user: User,
    role: str,
    sent: tuple[str, QueryDict] | None = None,
) -> list[Offer]:
    """What `user`, whose role in the project is `role`, may add. `sent`: an action and what was typed for it."""
    offered = []
    for name, action in ACTIONS.items():
        if not reaches(role, action.at_least) or (name in _ENDED_BY_REVOCATION and standing.revocation is not None):
            continue
        data = sent[1] if sent is not None and sent[0] == name else None
        given: dict[str, Any] = {"data": data, "auto_id": f"life-{name}-%s"}
        why: tuple[str, ...] = ()
        may = True
        if name == "sign_off":
            roles, why = signable(record=record, standing=standing, user=user, role=role)
            may = bool(roles)
            given |= {"roles": roles, "signed": any(entry.by_id == user.pk for entry in standing.signed)}
        elif name != "revoke":
            given["correctable"] = _correctable(entries, EntryKind(name))
        flags = _flags(record) if name == "override" else ()
        offered.append(Offer(name, action, action.form(**given) if may else None, why, data is not None, flags))
    return offered


def signable(
    *, record: Record, standing: Standing, user: User, role: str
) -> tuple[tuple[SignRole, ...], tuple[str, ...]]:
    """The roles in which the person may sign, and why not in the others."""
    launched = services.has_launched(record, user)
    refused = {
        sign_role: may_not_sign(sign_role, standing=standing, user_id=user.pk, member=role, launched=launched)
        for sign_role in SignRole
    }
    reasons = tuple(dict.fromkeys(words for words in refused.values() if words))
    return tuple(sign_role for sign_role, words in refused.items() if not words), reasons


def _correctable(entries: Sequence[RecordEntry], kind: EntryKind) -> list[RecordEntry]:
    corrected = {entry.data.get("corrects") for entry in entries}
    return [entry for entry in reversed(entries) if entry.kind == kind and entry.pk not in corrected]


def _flags(record: Record) -> tuple[str, ...]:
    """Names of the monitors that raised one, as the record holds them."""
    flags = json.loads(record.document)["sections"]["oversight"]["flags"]["value"] or ()
    return tuple(flag["monitor"] for flag in flags if flag["raised"])
