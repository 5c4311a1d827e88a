"""A node's user of RabbitMQ: it reads the queues that its worker listens to, and may do nothing else on the broker.

What is made here is a definitions file for `rabbitmqctl import_definitions`, with those queues in it, since that user
can declare none. Holds the password's hash, not the password.
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from grpo_core.protocol.queues import LAB_QUEUE, queue_pattern, train_queues

_CONNECTIONS = 16
"""Most at once: worker and lab's worker have two each, and what a lost network left counts for minutes."""


def broker_user(node: str) -> str:
    """The user's name."""
    return f"node-{node}"


def definitions(*, node: str, password: str, vhost: str, labels: Sequence[str], gpus: int) -> dict[str, Any]:
    """The user with its rights, and the queues of a node with these labels and GPUs, each with its exchange."""
    user, names = broker_user(node), [*train_queues(labels=list(labels), gpus=gpus), LAB_QUEUE]
    lasting = {"vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
    route = {"vhost": vhost, "destination_type": "queue", "arguments": {}}
    return {
        "users": [
            {
                "name": user,
                "password_hash": _password_hash(password),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": [],
                "limits": {"max-connections": _CONNECTIONS, "max-channels": 4 * _CONNECTIONS},
            }
        ],
        "permissions": [
            {
                "user": user,
                "vhost": vhost,
                "configure": "^$",
                "write": "^$",
                "read": queue_pattern(labels=list(labels), gpus=gpus),
            }
        ],
        "queues": [{"name": name, **lasting} for name in names],
        "exchanges": [{"name": name, "type": "direct", "internal": False, **lasting} for name in names],
        "bindings": [{"source": name, "destination": name, "routing_key": name, **route} for name in names],
    }


def _password_hash(password: str) -> str:
    """As RabbitMQ keeps it: base64 of four random bytes and the SHA-256 of them with the password."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
