"""The queue as people see it: every waiting run with its position, what it needs and why it waits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cohort.evidence.plain_text import counted
from cohort.nodes.engines import WORDS, fix
from cohort.runs.limits import WINDOW, hours_free_at
from cohort.runs.models import Run
from cohort.runs.retry import DELAYS
from cohort.runs.schedule import Kept, NodeCapacity, Queue, node_capacities, queue


@dataclass(frozen=True)
class WaitingRun:
    position: int
    """1 is next, in the order of all projects. A run that is blocked keeps its position and is passed over."""
    run: Run
    """With its project; settings and metrics are not loaded."""
    since: datetime
    needs: str
    """What kind of node: `any node`, `2 GPUs on a node with the label a100`."""
    why: str
    """Why it waits, as a clause: `both nodes that could take it are busy`."""


def waiting_rows(*, only: Run | None = None) -> list[WaitingRun]:
    """Every waiting run in its turn; `only` this one, at its position among all, and nothing when it does not wait."""
    waiting = queue()
    reasons = Reasons(waiting, node_capacities())
    rows: list[WaitingRun] = []
    for position, run in enumerate(waiting.order(), start=1):
        if only is None or run.pk == only.pk:
            assert run.queued_at is not None, "the run waits"
            rows.append(WaitingRun(position, run, run.queued_at, needs(run), reasons.why(run)))
        if only is not None and rows:
            break
        reasons.passed(run)
    return rows


def needs(run: Run) -> str:
    besides = [WORDS.get(name, name) for name in run.needs_packages]
    besides += ["a sandbox that works"] if run.needs_sandbox else []
    machine = f"a node with the label {run.node_label}" if run.node_label else "one node" if run.gpus else "any node"
    if run.gpus:
        machine = f"{counted(run.gpus, 'GPU')} on {machine}"
    return f"{machine}, with {' and '.join(besides)}" if besides else machine


class Reasons:
    """Why runs wait, at one moment. `passed`, called with each in its turn, counts those before without going through
    them again; when GPU-hours are free is computed once for each project."""

    def __init__(self, waiting: Queue, here: Sequence[NodeCapacity]) -> None:
        self._queue, self._here = waiting, here
        self._ahead: Counter[frozenset[int]] = Counter()
        """The runs that were passed, by the nodes that may take them."""
        self._free_at: dict[int, datetime] = {}
        """By project id."""

    def passed(self, run: Run) -> None:
        """Count this run as before all that `why` is called with from now on."""
        self._ahead[frozenset(node.node_id for node in self._here if self._queue.may_take(run, node))] += 1

    def why(self, run: Run) -> str:
        """The first obstacle."""
        waiting = self._queue
        fitting = [node for node in self._here if node.fits(run)]
        taking = [node for node in fitting if not node.obstacle]
        open_to_it = [node for node in taking if not waiting.kept_from(run, node.node_id)]
        if waiting.held(run):
            return self._held(run)
        if all(waiting.kept_from(run, node.node_id) for node in taking) and _bound_to_holders(run, waiting):
            return _kept(run, waiting)
        if not fitting:
            return _none_fits(run, self._here)
        if not taking:
            return none_takes(fitting)
        if not open_to_it:
            return _kept(run, waiting)
        free = [node for node in open_to_it if not node.busy]
        nodes = {node.node_id for node in open_to_it}
        rivals = sum(count for takers, count in self._ahead.items() if takers & nodes)  # before it, for one of these
        behind = f"behind {counted(rivals, 'other run')}" if rivals else ""
        if free:
            return behind if rivals >= len(free) else "a node takes it within seconds"
        if len(open_to_it) == 1:
            busy = f"{open_to_it[0].name}, the only node that could take it, is busy"
        else:
            busy = f"all {len(open_to_it)} nodes that could take it are busy"
        return f"{busy}; {behind}" if behind else busy

    def _held(self, run: Run) -> str:
        use, now = self._queue.uses[run.project_id], self._queue.now
        if run.not_before is not None and run.not_before > now:
            return f"waits until {_clock(run.not_before)} after a failure (try {run.retries} of {len(DELAYS)})"
        if use.no_place:
            return f"the project's limit of running runs is reached ({use.running} of {use.max_running} run)"
        words = f"{use.gpu_hours:,.0f} of {use.gpu_hours_limit:,} in {WINDOW.days} days"
        free_at = f"{self._hours_free_at(run):%Y-%m-%d %H:%M} UTC"
        return f"the project's GPU-hours are used up ({words}; frees at {free_at} if nothing more is used)"

    def _hours_free_at(self, run: Run) -> datetime:
        if run.project_id not in self._free_at:
            free_at = hours_free_at(run.project, now=self._queue.now)
            assert free_at is not None, "there is a limit"
            self._free_at[run.project_id] = free_at
        return self._free_at[run.project_id]


def _none_fits(run: Run, here: Sequence[NodeCapacity]) -> str:
    if not here:
        return "no node is here"
    named = [node for node in here if not run.node_label or run.node_label in node.labels]
    if not named:
        others = "; ".join(f"{node.name}: {', '.join(sorted(node.labels)) or 'no label'}" for node in here)
        return f"no node that is here has the label {run.node_label} ({others})"
    if placed := [node for node in named if node.placed(run)]:
        if not (having := [node for node in placed if not node.lacks(run)]):
            others = "; ".join(f"{node.name} {fix(node.lacks(run))}" for node in placed)
            needed = " and ".join(WORDS.get(name, name) for name in run.needs_packages)
            return f"no node that could take it has {needed} ({others})"
        others = "; ".join(f"{node.name}: {node.no_sandbox}" for node in having)
        return f"its reward runs code, and no node that could take it has a sandbox that works ({others})"
    others = "; ".join(f"{node.name} has {node.gpus or 'none'}" for node in named)
    where = f" with the label {run.node_label}" if run.node_label else ""
    return f"no node{where} that is here has {counted(run.gpus, 'GPU')} ({others})"


def none_takes(fitting: Sequence[NodeCapacity]) -> str:
    """Of nodes that could take a run and all take none: why."""
    if len(fitting) > 1 and all(node.draining for node in fitting):
        return f"all {len(fitting)} nodes that could take it are draining and take no new run"
    return "; ".join(f"{node.name} {node.obstacle}" for node in fitting)


def _bound_to_holders(run: Run, waiting: Queue) -> bool:
    """Whether it waits, without end, for nodes of which none can take it as things are: the first reason of all."""
    kept = waiting.kept.get(run.pk)
    return kept is not None and kept.within_reach is not None and kept.searched_until is None and not _able(run, kept)


def _able(run: Run, kept: Kept) -> bool:
    return any(node.fits(run) and not node.obstacle for node in kept.holders)


def _kept(run: Run, waiting: Queue) -> str:
    kept = waiting.kept[run.pk]
    if kept.newest and waiting.now < kept.until:
        seconds = (kept.until - waiting.now).total_seconds()
        which = " or ".join(kept.newest.values())
        has = "has" if len(kept.newest) == 1 else "have"
        return f"kept for {which}, which {has} its newest checkpoint, for another {seconds:.0f} s"
    if kept.searched_until is None and not _able(run, kept):
        return _out_of_use(run, kept)
    names = [node.name for node in kept.holders]
    which = f"{names[0]}, the only node" if len(names) == 1 else f"{' or '.join(names)}, the nodes"
    until = "" if kept.searched_until is None else f" until {_clock(kept.searched_until)}"
    return f"waits{until} for {which} that {'has' if len(names) == 1 else 'have'} a checkpoint of it"


def _out_of_use(run: Run, kept: Kept) -> str:
    """The nodes that have its checkpoints are here, and none can take it: what they are, and what a person can do."""
    nodes = [f"{node.name}, which {_hindered(run, node)}" for node in kept.holders]
    where = (
        f"its only checkpoint is on {nodes[0]}" if len(nodes) == 1 else f"its checkpoints are on {'; on '.join(nodes)}"
    )
    undrain = "undrain it" if len(nodes) == 1 else "undrain one"
    remedy = f"{undrain}, or" if any(node.draining for node in kept.holders) else "mend that, or"
    return f"{where}: {remedy} cancel the run and retry it from the first step"


def _hindered(run: Run, node: NodeCapacity) -> str:
    if node.draining:
        return "is being drained"
    if node.obstacle:
        return node.obstacle
    if run.node_label and run.node_label not in node.labels:
        return f"does not have the label {run.node_label}"
    if node.placed(run) and (lacking := node.lacks(run)):
        return fix(lacking)
    if node.placed(run) and run.needs_sandbox and node.no_sandbox:
        return "has no sandbox that works"
    return f"has {counted(node.gpus, 'GPU')} and it needs {run.gpus:,}"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S} UTC"
