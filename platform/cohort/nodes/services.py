"""Machines that may run attempts: made, drained, let in again, and the tokens that worker calls carry. How one is
revoked is in `revoke`: that ends attempts, and `attempts` calls this module.

A token is shown once and stored only as its SHA-256; a token is looked up by that digest. Nodes serve every project,
so who may change one is checked elsewhere (`people.manages_server`); `actor` is None for commands run on the server.
"""

import hashlib
import logging
import secrets
from datetime import timedelta

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.nodes.models import Draining, Node
from grpo_core.protocol.messages import NodeInfo

SILENT_AFTER = timedelta(seconds=max(60, settings.COHORT_LEASE_SECONDS))
"""A worker sends a heartbeat every 20 s, busy or not; one without for this long is gone. A shorter lease does
not shorten it, because an idle worker knows nothing of leases."""


def nodes_here() -> QuerySet[Node]:
    """Not revoked, with a heartbeat lately by the database's clock."""
    return Node.objects.filter(revoked_at=None, last_seen_at__gt=Now() - SILENT_AFTER)


NAME_CHARS = 80

log = logging.getLogger(__name__)


def token_new() -> tuple[str, str]:
    """A fresh token and the digest to store."""
    token = secrets.token_urlsafe(32)
    return token, token_digest(token)


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def node_by_token(token: str) -> Node | None:
    """The node that this token is of, unless it is revoked.

    The first call with a token made to replace another makes it the node's token; the
    old one is refused from then on.
    """
    digest = token_digest(token)
    node = Node.objects.filter(Q(token_digest=digest) | Q(next_token_digest=digest), revoked_at=None).first()
    if node is not None and node.token_digest != digest:
        with transaction.atomic():
            waiting = Node.objects.filter(pk=node.pk, next_token_digest=digest)
            if waiting.update(token_digest=digest, next_token_digest=None):
                _logged(node, f"node:{node.name}", "node_token_replaced")
        log.info("node %r uses its new token; the old one is refused", node.name)
    return node


def node_create(*, name: str, actor: User | None = None) -> tuple[Node, str]:
    """Register a machine; the token is returned here and never again. Raises ValidationError on `name`."""
    if not 1 <= len(name) <= NAME_CHARS or name != name.strip() or not name.isprintable():
        raise ValidationError(
            {"name": f"A node's name has 1 to {NAME_CHARS} letters, digits and signs, none of them unseen."}
        )
    token, digest = token_new()
    try:
        with transaction.atomic():
            node = Node.objects.create(name=name, token_digest=digest)
            _logged(node, audit.who(actor), "node_created")
    except IntegrityError:
        raise ValidationError(
            {"name": f"There is a node {name} already. Give this one another name, or that one another token."}
        ) from None
    log.info("node %r made by %r", name, actor and actor.username)
    return node, token


def node_present(*, node: Node, info: NodeInfo) -> None:
    """Store a node's sign of life and what it reports of itself.

    A worker that has just been started reports its sandbox only once it has tried it; until then the last report holds.
    """
    reported = info.model_dump(mode="json")
    if info.sandbox_report is None and node.info.get("sandbox_report"):
        reported |= {name: node.info.get(name) for name in ("sandbox", "sandbox_report")}
    Node.objects.filter(pk=node.pk).update(info=reported, last_seen_at=Now())


@transaction.atomic
def node_rotate(*, node: Node, actor: User | None) -> str:
    """A new token, returned here and never again. The old one is accepted until the new one is first used.

    A node that was revoked is let in again by the new token alone: what ran there has ended, so that no token of an
    attempt comes back with it. A new token made before and never used no longer counts.
    """
    token, digest = token_new()
    again = not Node.objects.filter(pk=node.pk, revoked_at=None).update(next_token_digest=digest)
    if again:
        Node.objects.filter(pk=node.pk).update(token_digest=digest, next_token_digest=None, revoked_at=None)
    _logged(node, audit.who(actor), "node_let_in_again" if again else "node_token_rotated")
    log.info("node %r got a new token from %r", node.name, actor and actor.username)
    return token


@transaction.atomic
def node_drain(*, node: Node, actor: User | None, how: Draining) -> None:
    """Give the node no new run; what runs there ends there (FINISH) or resumes elsewhere from a checkpoint (MOVE).

    Raises ValidationError when the node is revoked.
    """
    if not Node.objects.filter(pk=node.pk, revoked_at=None).update(draining=how):
        raise ValidationError(f"{node.name} is revoked, so nothing runs there.")
    _logged(node, audit.who(actor), "node_drained", {"how": how.value})
    log.info("node %r drained (%s) by %r", node.name, how.value, actor and actor.username)


@transaction.atomic
def node_undrain(*, node: Node, actor: User | None) -> None:
    """Let the node take runs again. Raises ValidationError when it was not draining."""
    if not Node.objects.filter(pk=node.pk).exclude(draining=Draining.NO).update(draining=Draining.NO):
        raise ValidationError(f"{node.name} is not draining.")
    _logged(node, audit.who(actor), "node_undrained")
    log.info("node %r takes runs again, by %r", node.name, actor and actor.username)


def _logged(node: Node, actor: str, kind: str, data: dict[str, str] | None = None) -> None:
    audit.log(actor=actor, kind=kind, subject=f"node:{node.name}", data=data)
