"""People, their first project, and nodes, managed from the command line of the machine that Cohort runs on."""

import json
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from kombu.utils.url import parse_url

from cohort.accounts.models import Membership, Project, Role, User
from cohort.accounts.people import user_disable, user_enable
from cohort.accounts.services import membership_set, password_hand_out, project_create, staff_make, user_create
from cohort.background import revoke
from cohort.base.environment import environment
from cohort.cli.embedded.home import HomeError
from cohort.nodes import services as nodes
from cohort.nodes.broker_user import definitions
from cohort.nodes.models import Draining, Node
from cohort.runs.node_status import node_status_rows
from grpo_core.protocol.queues import LABEL, LABEL_RULE

BROKER_PASSWORD_CHARS = 24
"""Least of a node's user on RabbitMQ, which tries passwords as fast as they come."""


_ARGUMENTS = {"username": "NAME", "slug": "--project", "name": "--project"}
"""Of the command, by the field of a service that takes them."""


def password_renew(username: str) -> tuple[User, str]:
    """The person of this name, made when missing, with a new password; it is returned here and never again."""
    user = User.objects.filter(username=username).first()
    return (user, password_hand_out(user=user)) if user else user_create(username=username)


def user_add(*, name: str, project: str | None, role: str | None, new_password: bool, staff: bool = False) -> list[str]:
    """Make a person, or give one a new password, and put them in a project. Returns the lines to show.

    Without a role a member keeps the one they have, and anyone else becomes an operator. `staff` lets them manage the
    server's nodes and people, whatever their role.
    """
    if role is not None and project is None:
        raise HomeError("--role is of no use alone: say with --project where it is to hold.")
    known = User.objects.filter(username=name).exists()
    if known and not new_password and project is None and not staff:
        raise HomeError(f"{name} is here already. --new-password gives them another password.")
    lines = []
    try:
        with transaction.atomic():
            if known and not new_password:
                user = User.objects.get(username=name)
            else:
                user, password = password_renew(name)
                lines.append(f"{name} can log in with the password {password}")
            if staff:
                staff_make(user=user)
                lines.append(f"{name} may manage the server's nodes and people")
            if project is not None:
                lines.append(_join(user, project, role))
    except ValidationError as fault:
        raise _refusal(fault) from None
    return lines


def user_switch(*, name: str, enable: bool) -> str:
    """Let the person sign in again, or refuse it from now on and end their sessions. Returns the line to show."""
    user = User.objects.filter(username=name).first()
    if user is None:
        raise HomeError(f"there is no person {name}. Names are case-sensitive.")
    try:
        (user_enable if enable else user_disable)(user=user, actor=None)
    except ValidationError as fault:
        raise _refusal(fault) from None
    return f"{name} can sign in again" if enable else f"{name} can no longer sign in, and is signed out everywhere"


def node_add(*, name: str) -> str:
    """Register a machine that may train; returns its token, which is not shown again."""
    try:
        _, token = nodes.node_create(name=name)
    except ValidationError as fault:
        message = " ".join(fault.messages)
        raise HomeError(message[0].lower() + message[1:]) from None
    return token


def node_rotate(*, name: str) -> str:
    """A new token for the node, which is not shown again; the old one is refused once the new one is used."""
    return nodes.node_rotate(node=_node(name), actor=None)


def node_revoke(*, name: str) -> str:
    """Refuse the node's token from now on, and end what runs there. Its name stays taken, for the record."""
    _change(revoke.node_revoke, name)
    return f"the token of {name} is refused from now on"


def node_drain(*, name: str, move: bool) -> str:
    """Give the node no new run; with `move` what runs there resumes elsewhere."""
    how = Draining.MOVE if move else Draining.FINISH
    _change(nodes.node_drain, name, how=how)
    return f"{name} is draining. {how.label}."


def node_undrain(*, name: str) -> str:
    _change(nodes.node_undrain, name)
    return f"{name} takes runs again"


def node_broker_user(*, name: str, password: str, labels: list[str], gpus: int) -> str:
    """Definitions, as JSON, with which RabbitMQ lets the node's worker read its queues and do nothing else."""
    broker = parse_url(environment().resolved_broker_url())
    if broker["transport"] not in ("amqp", "amqps"):
        raise HomeError("COHORT_BROKER_URL is not amqp://: of the brokers, RabbitMQ alone has users with such rights.")
    if len(password) < BROKER_PASSWORD_CHARS:
        raise HomeError(
            f"the password has {len(password)} characters; give one of {BROKER_PASSWORD_CHARS} or more on standard "
            "input, such as of `openssl rand -hex 24`."
        )
    for label in labels:
        if not LABEL.fullmatch(label):
            raise HomeError(f"{label!r} can be no label: one takes {LABEL_RULE}.")
    vhost = broker["virtual_host"] or "/"
    node = _node(name).name
    return json.dumps(definitions(node=node, password=password, vhost=vhost, labels=labels, gpus=gpus), indent=1)


def node_lines() -> list[str]:
    """Every node in a line: name, what it does, since when it is silent, what runs there."""
    rows = node_status_rows()
    if not rows:
        return ["There is no node yet. `cohort node NAME` makes one and prints the token that its worker needs."]
    width = max(len(row.node.name) for row in rows)
    lines = []
    for row in rows:
        words = [row.node.name.ljust(width), row.status.ljust(8)]
        if row.node.last_seen_at is not None:
            words.append(f"last heartbeat {row.node.last_seen_at:%Y-%m-%d %H:%M:%S} UTC")
        words += [f"run {attempt.run_id}, attempt {attempt.fence}" for attempt in row.attempts]
        lines.append("  ".join(words).rstrip())
    return lines


def _refusal(fault: ValidationError) -> HomeError:
    """What a service refused, with the name of each argument at fault."""
    if not hasattr(fault, "error_dict"):
        return HomeError(" ".join(fault.messages))
    texts = (f"{_ARGUMENTS.get(name, name)}: {' '.join(texts)}" for name, texts in fault.message_dict.items())
    return HomeError(" ".join(dict.fromkeys(texts)))


def _node(name: str) -> Node:
    node = Node.objects.filter(name=name).first()
    if node is None:
        raise HomeError(f"there is no node {name}. `cohort node --list` shows those that there are.")
    return node


def _change(service: Callable[..., None], name: str, **more: Any) -> None:
    try:
        service(node=_node(name), actor=None, **more)
    except ValidationError as fault:
        raise _refusal(fault) from None


def _join(user: User, slug: str, role: str | None) -> str:
    project = Project.objects.filter(slug=slug).first()
    if project is None:
        if role not in (None, "admin"):
            raise HomeError(
                f"there is no project {slug!r}, and a new one's first member is its admin. Leave out --role."
            )
        project_create(slug=slug, name=slug, owner=user)
        return f"made the project {slug}; {user.username} is its admin"
    has = Membership.objects.filter(project=project, user=user).values_list("role", flat=True).first()
    chosen = role or has or Role.OPERATOR.value
    membership_set(project=project, actor=None, user=user, role=chosen)
    return f"{user.username} is {chosen} in {slug}"
