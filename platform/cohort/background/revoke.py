"""Revoking a node's access, and that of the attempts that run on it, for good.

A token of an attempt is refused while its node is revoked. That alone is not enough: a new token for the node would
make the attempts' tokens valid again. So the attempts end with the revocation.
"""

import logging

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.lab.jobs import jobs_revoked
from cohort.nodes.models import Node
from cohort.runs import schedule
from cohort.runs.attempts import attempts_revoked

log = logging.getLogger(__name__)


@transaction.atomic
def node_revoke(*, node: Node, actor: User | None) -> None:
    """Refuse the node's tokens from now on and end its attempts. Its name stays taken, for the record.

    What ran there goes back to the queue at once; its worker stops the trainer at its next call. `actor` is None for
    the command on the server. Raises ValidationError when the node is revoked already.
    """
    schedule.lock_schedule()  # an earlier claim has made its attempt by now, a later one sees the revocation
    if not Node.objects.filter(pk=node.pk, revoked_at=None).update(revoked_at=Now(), next_token_digest=None):
        raise ValidationError(f"{node.name} is revoked already.")
    audit.log(actor=audit.who(actor), kind="node_revoked", subject=f"node:{node.name}")
    attempts_revoked(node=node, actor=audit.who(actor))
    jobs_revoked(node=node)
    log.info("node %r revoked by %r", node.name, actor and actor.username)
