"""Whose turn it is: which waiting run a node may take, in which order, and why not another.

The rules are here once, for the claim, for the messages and for the page of the queue. Everything is read at one moment
of the database's clock; only `turn` decides, under a lock, so that two claims never see the same free place.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Exists, F, OuterRef, QuerySet

from cohort import __version__
from cohort.nodes.engines import packages_of, sandbox_of
from cohort.nodes.models import Node
from cohort.nodes.services import nodes_here
from cohort.runs.checkpoints import resumable
from cohort.runs.limits import Use, uses
from cohort.runs.models import Attempt, AttemptState, Run, RunState
from grpo_core.protocol.messages import NodeInfo

KEPT = timedelta(seconds=60)
"""For so long a run that came back to the queue is kept for the node that has its newest checkpoint."""
SEARCHED = timedelta(minutes=15)
"""So long after the last sign of life of those that have its checkpoints a run waits for them, before a node that can
have none takes it and fails. While one of them is here it waits without end. A node that was revoked is not here, and
may be let in again with all it has."""
_MEASURING = "measures what a run will take, and takes one when it has"
_UNSHOWN = ("config", "first_metrics", "latest_metrics", "log_tail")


@dataclass(frozen=True)
class NodeCapacity:
    """A node that runs may go to."""

    node_id: int
    name: str
    labels: frozenset[str]
    gpus: int
    shares: str
    """NodeInfo.runs_id: nodes with the same one have the same checkpoints; empty: it has those it wrote."""
    draining: bool
    obstacle: str
    """Why it takes no new run whatever, as a clause without a subject: `is draining and takes no new run`."""
    busy: bool
    no_sandbox: str = ""
    """Why it takes no run that needs a sandbox, with the fix; empty: its sandbox works."""
    packages: frozenset[str] = frozenset()
    """The packages, among those that engines need, that it has."""
    last_seen_at: datetime | None = None

    def placed(self, run: Run) -> bool:
        """Whether it is the kind of machine that the run requires."""
        return run.gpus <= self.gpus and (not run.node_label or run.node_label in self.labels)

    def lacks(self, run: Run) -> list[str]:
        """Packages of its engine that are not there."""
        return [name for name in run.needs_packages if name not in self.packages]

    def fits(self, run: Run) -> bool:
        return self.placed(run) and not self.lacks(run) and not (run.needs_sandbox and self.no_sandbox)


@dataclass(frozen=True)
class Kept:
    """Where a run's checkpoints are, while not every node can have the newest."""

    newest: Mapping[int, str]
    """Names by id of the nodes that alone have the newest and may come for it; empty: no such node."""
    until: datetime
    """Others wait so long for those nodes."""
    within_reach: frozenset[int] | None
    """Nodes that can have some checkpoint; None: every node, because the platform has one."""
    holders: tuple[NodeCapacity, ...]
    """Those that the run waits for, by name: those that are here, or else those that were lately."""
    searched_until: datetime | None
    """Nodes out of reach wait so long for the holders; None: as long as one is here, busy or draining too."""


@dataclass(frozen=True)
class Queue:
    """The waiting runs at one moment, and what the rules need to know of them."""

    now: datetime
    runs: tuple[Run, ...]
    """With their projects; settings and metrics are not loaded."""
    uses: Mapping[int, Use]
    """By project id."""
    kept: Mapping[int, Kept]
    """By run id."""

    def order(self, runs: Iterable[Run] | None = None) -> list[Run]:
        """In turn: of the project with the fewest running attempts, then the fewest GPU-hours, then the longest wait;
        inside a project by priority, then by wait. A run that has been placed counts as running for the next."""
        lines: dict[int, list[Run]] = defaultdict(list)
        for run in self.runs if runs is None else runs:
            lines[run.project_id].append(run)
        for line in lines.values():  # the first comes last, to be popped
            line.sort(key=lambda run: (-run.priority, run.queued_at, run.pk), reverse=True)
        running = {project_id: self.uses[project_id].running for project_id in lines}
        placed: list[Run] = []
        while lines:
            project_id = min(
                lines, key=lambda key: (running[key], self.uses[key].gpu_hours, lines[key][-1].queued_at, key)
            )
            placed.append(lines[project_id].pop())
            running[project_id] += 1
            if not lines[project_id]:
                del lines[project_id]
        return placed

    def held(self, run: Run) -> bool:
        """Whether no node at all may take the run now."""
        use = self.uses[run.project_id]
        return (run.not_before is not None and run.not_before > self.now) or use.no_place or use.no_hours

    def kept_from(self, run: Run, node_id: int) -> bool:
        """Whether the run is kept for another node."""
        kept = self.kept.get(run.pk)
        if kept is None:
            return False
        if kept.within_reach is not None and node_id not in kept.within_reach:
            return kept.searched_until is None or self.now < kept.searched_until
        return bool(kept.newest) and node_id not in kept.newest and self.now < kept.until

    def may_take(self, run: Run, node: NodeCapacity) -> bool:
        return not self.held(run) and node.fits(run) and not node.obstacle and not self.kept_from(run, node.node_id)


def node_capacities() -> tuple[NodeCapacity, ...]:
    """The nodes that are here, by name."""
    running = Attempt.objects.filter(node=OuterRef("pk"), state=AttemptState.RUNNING)
    measuring = _measuring().filter(pk=OuterRef("pk"))
    nodes = nodes_here().annotate(busy=Exists(running), measuring=Exists(measuring)).order_by("name")
    return tuple(node_capacity(node, busy=node.busy, measuring=node.measuring) for node in nodes)


def _measuring() -> QuerySet[Node]:
    """Nodes that measure what a run will take. By the reverse relation, because the lab's models depend on those of
    runs."""
    return Node.objects.filter(lab_jobs__kind="estimate", lab_jobs__state="running")


def node_capacity(node: Node, *, busy: bool = False, measuring: bool = False) -> NodeCapacity:
    info = NodeInfo.model_validate(node.info) if node.info else NodeInfo(hostname="", cpus=0, memory_bytes=0)
    return NodeCapacity(
        node_id=node.pk,
        name=node.name,
        labels=frozenset(info.labels),
        gpus=info.gpus,
        shares=info.runs_id,
        draining=bool(node.draining),
        obstacle=_obstacle(node, info) or (_MEASURING if measuring else ""),
        busy=busy,
        no_sandbox=sandbox_of(node).fix,
        packages=packages_of(info.versions),
        last_seen_at=node.last_seen_at,
    )


def current_capacity(node: Node) -> NodeCapacity:
    """The claiming node as it is now."""
    return node_capacity(Node.objects.get(pk=node.pk), measuring=_measuring().filter(pk=node.pk).exists())


def _obstacle(node: Node, info: NodeInfo) -> str:
    theirs = info.versions.get("cohort-grpo", "unknown") if node.info else __version__
    if node.revoked_at is not None:
        return "is revoked"
    if node.draining:
        return "is draining and takes no new run"
    if theirs != __version__:
        return f"is of version {theirs}, not {__version__}"
    return f"refuses: {info.refuses}" if info.refuses else ""


def queue() -> Queue:
    """Six queries, however long the queue."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT STATEMENT_TIMESTAMP()")
        now: datetime = cursor.fetchone()[0]
    waiting = Run.objects.filter(state=RunState.QUEUED).select_related("project", "resume_from").defer(*_UNSHOWN)
    runs = tuple(waiting.order_by("queued_at", "pk"))
    projects = {run.project_id: run.project for run in runs}
    return Queue(now, runs, uses(list(projects.values())) if projects else {}, _kept(runs, now))


def lock_schedule() -> None:
    """Serialise claims until the end of the transaction, so that limits and order hold. Claims are rare."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('cohort schedule', 0))")


def turn(*, node: Node) -> Run | None:
    """The run whose turn it is on this node, locked and still waiting; None when there is none.

    Needs a transaction; until its end no other claim is decided.
    """
    lock_schedule()
    capacity = current_capacity(node)
    now = queue()
    for run in now.order([run for run in now.runs if now.may_take(run, capacity)]):
        locked = Run.objects.select_for_update(of=["self"]).select_related("project").get(pk=run.pk)
        # Since it was read, a person may have paused it or changed what it needs; then the next run has its turn.
        if locked.state == RunState.QUEUED and (locked.node_label, locked.gpus) == (run.node_label, run.gpus):
            return locked
    return None


def takeable(waiting: Queue, nodes: Sequence[NodeCapacity]) -> list[Run]:
    """The runs that some node here may take, busy or not, in turn."""
    return [run for run in waiting.order() if any(waiting.may_take(run, node) for node in nodes)]


def _kept(runs: Sequence[Run], now: datetime) -> dict[int, Kept]:
    """Of runs that have been on a worker and resume from a checkpoint."""
    again = {run.pk: run for run in runs if run.fence and not run.from_start}
    if not again:
        return {}
    rows: dict[int, list[tuple[int, bool, bool]]] = defaultdict(list)
    columns = ("run_id", "step", F("attempt__node_id"), "removed_at", "stored_at")
    for run_id, step, node_id, removed, stored in resumable(*again.values()).values_list(*columns):
        chosen = again[run_id].resume_from
        if chosen is None or step <= chosen.step:
            rows[run_id].append((node_id, removed is None, stored is not None))
    if not rows:
        return {}
    nodes = {node.pk: node_capacity(node) for node in Node.objects.order_by("name")}
    here = set(nodes_here().values_list("pk", flat=True))
    return {run_id: _kept_of(again[run_id], line, nodes, here, now) for run_id, line in rows.items()}


def _kept_of(
    run: Run,
    line: Sequence[tuple[int, bool, bool]],
    nodes: Mapping[int, NodeCapacity],
    here: set[int],
    now: datetime,
) -> Kept:
    """`line` has (node, still there, on the platform) of each checkpoint, newest first; `nodes` is ordered by name."""
    assert run.queued_at is not None, "the run waits"
    since = max(run.queued_at, run.not_before or run.queued_at)
    wrote, there, stored = line[0]
    newest = _with_the_folder({wrote}, nodes) if there and not stored else frozenset[int]()
    on_nodes = _with_the_folder({node_id for node_id, there, _ in line if there}, nodes)
    holding = [node for node in nodes.values() if node.node_id in on_nodes]
    present = [node for node in holding if node.node_id in here]
    seen = [node.last_seen_at for node in holding if node.last_seen_at is not None]
    searched_until = None if present else min(max(seen), now) + SEARCHED if seen else since
    lately = [node for node in holding if node.last_seen_at is not None and node.last_seen_at > now - SEARCHED]
    return Kept(
        newest={node.node_id: node.name for node in present if node.node_id in newest and not node.obstacle},
        until=since + KEPT if since < now + KEPT else now,  # so far ahead only where the clock was set back
        within_reach=None if any(stored for _, _, stored in line) else on_nodes,
        holders=tuple(present or lately),
        searched_until=searched_until,
    )


def _with_the_folder(wrote: set[int], nodes: Mapping[int, NodeCapacity]) -> frozenset[int]:
    """These nodes and all that share a folder of runs with one of them."""
    shared = {nodes[node_id].shares for node_id in wrote} - {""}
    return frozenset(wrote | {node.node_id for node in nodes.values() if node.shares in shared})
