"""Leases: which worker has an attempt of a run or a job of the lab, and until when.

The one engine of both: rows are of a model that is a `Leased`, with a `state` that is `running` while a worker has the
row, a `node` and a `fence`. What such a worker may call is bound to the row's token and fence. Times are the
database's: a lease is compared with no other clock.
"""

from datetime import timedelta
from typing import Any, TypeVar

from django.conf import settings
from django.db.models import Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

import cohort
from cohort.base.storable import Refused
from cohort.nodes.models import Leased, Node
from cohort.nodes.services import token_digest, token_new
from grpo_core.protocol.messages import NodeInfo

RUNNING = Q(state="running")

Row = TypeVar("Row", bound=Leased)


class NotWaiting(Refused, code="not_waiting"):
    """There is no work for this node now. The message says why."""


class OtherVersion(Refused, code="other_version"):
    """The worker is not of the platform's version."""


class StaleFence(Refused, code="stale_fence"):
    """The lease has ended, or a newer one has replaced it; its worker may write nothing."""


def _length() -> timedelta:
    return timedelta(seconds=settings.COHORT_LEASE_SECONDS)


def _end() -> Combinable:
    return Now() + _length()


# ---------------------------------------------------------------------- claim


def require_version(node: Node, info: NodeInfo) -> None:
    """Raises OtherVersion."""
    theirs = info.versions.get("cohort-grpo", "unknown")
    if theirs != cohort.__version__:
        raise OtherVersion(
            f"the worker on {node.name} is of version {theirs} and the platform of {cohort.__version__}, and they read "
            f"each other's configs and records only within one version: install cohort-grpo=={cohort.__version__} "
            "there and start the worker again"
        )


def require_free(rows: QuerySet[Row], node: Node, info: NodeInfo, work: str) -> None:
    """Lock the node for its claim. Needs a transaction. Raises NotWaiting where the worker takes no `work`, a run or a
    job, at all, or one of the `rows` is leased to it: a worker has one at a time."""
    if info.refuses:
        raise NotWaiting(f"the worker on {node.name} takes no {work} now: {info.refuses}", code="worker_refuses")
    Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    held: Any = rows.filter(RUNNING, node=node).first()
    if held is not None:
        raise NotWaiting(
            f"{node.name} has {held.lease_name}, and takes no other {work} before its end. Further workers on the "
            "machine need nodes and tokens of their own",
            code="has_one",
        )


def grant(node: Node, claim_id: str) -> tuple[str, dict[str, Any]]:
    """A new token, and the columns of a row that is leased with it from now on."""
    token, digest = token_new()
    claim = {"node": node, "claim_id": claim_id, "token_digest": digest}
    return token, {"state": "running", "heartbeat_at": None, "lease_until": _end(), **claim}


def granted_before(rows: QuerySet[Row], node: Node, claim_id: str) -> tuple[Row, str] | None:
    """The row that this claim was granted before, with another token, as long as it has not beaten: the first reply was
    lost. An empty `claim_id` repeats no claim."""
    silent = rows.filter(RUNNING, Q(node=node, claim_id=claim_id, heartbeat_at=None))
    row = silent.first() if claim_id else None
    if row is None:
        return None
    token, digest = token_new()
    if not silent.filter(pk=row.pk).update(token_digest=digest, lease_until=_end()):
        return None  # it was ended in between
    row.refresh_from_db(fields=["token_digest", "lease_until"])
    return row, token


# ---------------------------------------------------------------------- calls of the row's worker


def by_token(rows: QuerySet[Row], pk: int, token: str) -> Row | None:
    """The row that this token is of, unless its node is revoked."""
    return rows.filter(Q(node__revoked_at=None), pk=pk, token_digest=token_digest(token)).first()


def extend(row: Leased, fence: int, **columns: Any) -> None:
    """A heartbeat: extend the lease, even an expired one, as long as it has not been ended for that. Raises
    StaleFence."""
    if not _held(row, fence).update(heartbeat_at=Now(), lease_until=_end(), **columns):
        raise _stale(row, fence)


def require_current(row: Leased, fence: int) -> None:
    """Raises StaleFence unless the row is leased at this fence."""
    if not _held(row, fence).exists():
        raise _stale(row, fence)


def lock(row: Leased, fence: int, *related: str) -> None:
    """Lock the row and read it anew, with its `related` rows. Needs a transaction. Raises StaleFence."""
    if not _held(row, fence).select_for_update().first():
        raise _stale(row, fence)
    row.refresh_from_db(from_queryset=type(row)._base_manager.select_related(*related))


def ended_as(row: Leased, fence: int, state: str) -> bool:
    """Whether this lease has ended so already: the reply to its finish was lost."""
    return _held(row, fence, state).exists()


def _held(row: Leased, fence: int, state: str = "running") -> QuerySet[Leased]:
    rows = type(row)._base_manager.filter(pk=row.pk, token_digest=row.token_digest)
    return rows.filter(Q(fence=fence, state=state))


def _stale(row: Leased, fence: int) -> StaleFence:
    now: Any = type(row)._base_manager.get(pk=row.pk)
    if now.state != "running":
        return StaleFence(f"{now.lease_name} has ended: {now.state}")
    return StaleFence(f"{now.lease_name} is at fence {now.fence}; this call came with {fence}")


# ---------------------------------------------------------------------- leases that are over


def expired(rows: QuerySet[Row]) -> list[int]:
    """Ids of the rows whose lease is over, including those that never beat."""
    return list(rows.filter(RUNNING, lease_until__lt=Now()).values_list("pk", flat=True))


def lock_expired(rows: QuerySet[Row], pk: int) -> Row | None:
    """The row, locked, when its lease is still over; None when a beat or a finish came first."""
    return rows.filter(RUNNING, pk=pk, lease_until__lt=Now()).select_for_update(of=["self"]).first()


def cap(rows: QuerySet[Row]) -> int:
    """Shorten leases that lie more than two lengths ahead, which no beat can have made. Returns how many."""
    return rows.filter(RUNNING, lease_until__gt=Now() + 2 * _length()).update(lease_until=_end())
