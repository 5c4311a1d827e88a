"""What each node is and does: its devices and versions, and the attempts that run on it.

What a node reports comes from a machine that runs untrusted code: its shape is wire.NodeInfo's, its values are
not trusted.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from cohort import __version__
from cohort.nodes.engines import NodeSandbox, sandbox_of
from cohort.nodes.models import Draining, Node
from cohort.nodes.services import nodes_here
from cohort.runs.models import Attempt, AttemptState

_PACKAGE = "cohort-grpo"
_ORDER = ["working", "draining", "idle", "silent", "never", "revoked"]


@dataclass(frozen=True)
class Device:
    name: str
    count: int
    memory_bytes: int | None
    """Of each."""


@dataclass(frozen=True)
class NodeStatus:
    node: Node
    status: str
    """working, idle, draining (takes no new run), silent (no heartbeat any more), never (none yet) or revoked."""
    attempts: list[Attempt]
    """Running on it, of whatever project."""
    devices: list[Device]
    """GPUs first."""
    versions: list[tuple[str, str]]
    """Package and version; Cohort's own is apart."""
    cohort: str
    """Version of Cohort there; empty when not reported."""

    @property
    def other_version(self) -> bool:
        """The platform gives no run to a worker of another version than its own."""
        return self.cohort not in ("", __version__)

    @property
    def moving(self) -> bool:
        return self.node.draining == Draining.MOVE

    @property
    def cpus(self) -> int | None:
        return _whole(self.node.info.get("cpus"))

    @property
    def memory_bytes(self) -> int | None:
        return _whole(self.node.info.get("memory_bytes"))

    @property
    def reported(self) -> bool:
        """Whether its worker has ever reported its hardware."""
        return bool(self.node.info)

    @property
    def sandbox(self) -> NodeSandbox:
        """What its worker's self-test found."""
        return sandbox_of(self.node)

    @property
    def current(self) -> bool:
        """Whether its last report is current."""
        return self.status in ("working", "draining", "idle")


def node_status_rows() -> list[NodeStatus]:
    """Every node: those that are here first, the revoked last."""
    running: dict[int, list[Attempt]] = {}
    for attempt in _running().order_by("claimed_at"):
        assert attempt.node_id is not None, "it is of a worker"
        running.setdefault(attempt.node_id, []).append(attempt)
    here = set(nodes_here().values_list("pk", flat=True))
    rows = [_status(node, running.get(node.pk, []), here=node.pk in here) for node in Node.objects.order_by("name")]
    return sorted(rows, key=lambda row: _ORDER.index(row.status))


def node_status(node: Node) -> NodeStatus:
    running = list(_running().filter(node=node).order_by("claimed_at"))
    return _status(node, running, here=nodes_here().filter(pk=node.pk).exists())


def _running() -> QuerySet[Attempt]:
    return (
        Attempt.objects.filter(state=AttemptState.RUNNING)
        .select_related("run")
        .defer("manifest", "outcome", "run__config")
    )


def _status(node: Node, attempts: list[Attempt], *, here: bool) -> NodeStatus:
    if node.revoked_at is not None:
        status = "revoked"
    elif node.last_seen_at is None:
        status = "never"
    elif not here:
        status = "silent"
    elif node.draining:
        status = "draining"
    else:
        status = "working" if attempts else "idle"
    versions = {str(name): str(version) for name, version in node.info.get("versions", {}).items()}
    own = versions.pop(_PACKAGE, "")
    return NodeStatus(node, status, attempts, _devices(node.info), sorted(versions.items()), own)


def _devices(info: Mapping[str, Any]) -> list[Device]:
    """Devices that are alike, counted."""
    counted: Counter[tuple[bool, str, int | None]] = Counter()
    for device in info.get("devices", []):
        kind = str(device.get("kind", ""))
        counted[(kind == "cpu", str(device.get("name") or kind), _whole(device.get("memory_bytes")))] += 1
    return [
        # A CPU's memory is the machine's, which is shown separately.
        Device(name=name, count=count, memory_bytes=None if is_cpu else memory)
        for (is_cpu, name, memory), count in sorted(counted.items(), key=lambda item: item[0][0])
    ]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
