"""Versions of a project's policy: added, never changed; the newest is in force."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.evidence.policy.text import PolicyFault, parse_policy
from cohort.records.models import PolicyVersion


def policy_versions(project: Project) -> QuerySet[PolicyVersion]:
    """The newest first."""
    return PolicyVersion.objects.filter(project=project).select_related("by").order_by("-number")


def policy_in_force(project: Project) -> PolicyVersion | None:
    """None where the project has no policy, or withdrew it."""
    newest = policy_versions(project).first()
    return newest if newest is not None and newest.text else None


@transaction.atomic
def policy_save(*, project: Project, actor: User, text: str, reason: str, demanded: bool, seen: int) -> PolicyVersion:
    """Add a version. `seen`: the number of the version that the person edited, 0 for none: where another came since,
    nothing is stored. Raises ValidationError by field, for a text that is no policy with every fault and its line."""
    reason = _reason(reason)
    text = storable(text.replace("\r\n", "\n").strip("\n")) + "\n"
    try:
        policy = parse_policy(text)
    except PolicyFault as fault:
        raise ValidationError({"text": [str(problem) for problem in fault.problems]}) from None
    before = _newest_locked(project, seen)
    if before is not None and (before.text, before.demanded) == (text, demanded):
        raise ValidationError("Nothing was changed: this is the version in force.")
    return _added(project, actor, before, text=text, digest=policy.digest, demanded=demanded, reason=reason)


@transaction.atomic
def policy_withdraw(*, project: Project, actor: User, reason: str, seen: int) -> PolicyVersion:
    """Records are judged by no policy from now on; the versions stay. Raises ValidationError."""
    reason = _reason(reason)
    before = _newest_locked(project, seen)
    if before is None or not before.text:
        raise ValidationError("The project has no policy to withdraw.")
    return _added(project, actor, before, text="", digest="", demanded=False, reason=reason)


def _reason(reason: str) -> str:
    reason = audit.reason_checked(storable(reason.strip()))
    if not reason:
        raise ValidationError({"reason": "Say why: the reason is kept with the version and in the audit log."})
    return reason


def _newest_locked(project: Project, seen: int) -> PolicyVersion | None:
    """One change of a project's policy at a time."""
    lock_project(project)
    newest = policy_versions(project).first()
    if newest is None and seen:
        raise ValidationError("The project has no such version of a policy. Open its page again.")
    if newest is not None and newest.number != seen:
        raise ValidationError(
            f"{newest.by.username} saved version {newest.number} meanwhile. Your text is below and is not stored: "
            "compare it with that version, then save again."
        )
    return newest


def _added(
    project: Project, actor: User, before: PolicyVersion | None, *, text: str, digest: str, demanded: bool, reason: str
) -> PolicyVersion:
    version = PolicyVersion.objects.create(
        project=project,
        number=1 if before is None else before.number + 1,
        text=text,
        digest=digest,
        demanded=demanded,
        reason=reason,
        by=actor,
    )
    audit.log(
        actor=audit.who(actor),
        kind="policy_saved" if text else "policy_withdrawn",
        subject=f"policy:{version.pk}",
        project=project,
        before=None if before is None else _logged(before),
        after=_logged(version),
        reason=reason,
    )
    return version


def _logged(version: PolicyVersion) -> dict[str, object]:
    return {"version": version.number, "digest": version.digest, "demanded": version.demanded}
