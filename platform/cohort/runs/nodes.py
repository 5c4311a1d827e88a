"""Machines that may run attempts, and the tokens that worker calls carry.

A token is shown once and stored only as its SHA-256; a token is looked up by that digest.
"""

import hashlib
import secrets

from django.db.models.functions import Now

from cohort.runs.models import Node
from grpo_core.wire import NodeInfo


def token_new() -> tuple[str, str]:
    """A fresh token and the digest to store."""
    token = secrets.token_urlsafe(32)
    return token, token_digest(token)


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def node_create(*, name: str) -> tuple[Node, str]:
    """Register a machine; the token is returned here and never again."""
    token, digest = token_new()
    return Node.objects.create(name=name, token_digest=digest), token


def node_present(*, node: Node, info: NodeInfo) -> None:
    """The machine is here, waiting or working, and this is what it is."""
    Node.objects.filter(pk=node.pk).update(info=info.model_dump(mode="json"), last_seen_at=Now())
