"""An estimate as pages show it: how far it is, whether it is of what stands in the form, and what the run then took."""

from dataclasses import dataclass
from typing import Any

from cohort.accounts.models import Project
from cohort.base.formatting import bytes_, natural, seconds_in_words, signed_percent
from cohort.lab.estimates import estimate_of, launch_estimate, step_figures, why_unschedulable
from cohort.lab.models import OPEN, JobKind, JobState, LabJob
from cohort.nodes.selectors import nodes_here
from cohort.runs.models import Run
from cohort.runs.schedule import node_capacities
from cohort.web.lab.waiting import why_waits
from grpo_core.records.estimate import MEMORY, SECONDS, Estimate, compared

PARTS = {
    "sample": "sampling",
    "reward": "scoring",
    "logprobs": "log-probs",
    "update": "update",
    "checkpoint": "checkpoints",
    "waiting": "waiting",
    "other": "the rest",
}
"""Phases of a step in words."""


@dataclass(frozen=True)
class PartShown:
    name: str
    seconds: str
    share: float
    """Of the step, in percent."""


@dataclass(frozen=True)
class EstimateShown:
    """A measurement: under way, done, or ended otherwise."""

    job: LabJob
    digest: str
    """Of the config that stands in the form; empty when that is none."""
    told: Estimate | None
    why: str = ""
    """Why it waits."""
    nodes: tuple[str, ...] = ()
    """Nodes that could take the run and have less memory than it needs, in words."""

    @property
    def live(self) -> bool:
        return self.job.state in OPEN

    @property
    def stale(self) -> bool:
        return self.job.config_digest != self.digest

    @property
    def progress(self) -> dict[str, Any]:
        return self.job.progress or {}

    @property
    def per_step(self) -> str:
        return seconds_in_words(self.told.seconds_per_step) if self.told else ""

    @property
    def step_range(self) -> str:
        return _range(self.told, SECONDS, seconds_in_words)

    @property
    def memory(self) -> str:
        return str(bytes_(self.told.peak_memory_bytes)) if self.told else ""

    @property
    def memory_range(self) -> str:
        return _range(self.told, MEMORY, lambda size: str(bytes_(size)))

    @property
    def parts(self) -> list[PartShown]:
        if self.told is None or self.told.seconds_per_step <= 0:
            return []
        whole = self.told.seconds_per_step
        return [
            PartShown(PARTS.get(name, name), seconds_in_words(seconds), 100 * seconds / whole)
            for name, seconds in self.told.parts.items()
        ]

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*(self.told.warnings if self.told else ()), *self.nodes)


def _range(told: Estimate | None, name: str, words: Any) -> str:
    if told is None or name not in told.spread:
        return ""
    low, high = told.spread[name]
    return f"{words(low)} to {words(high)}"


def estimate_shown(project: Project, asked: str, digest: str) -> EstimateShown | None:
    """The measurement of the config with this digest; where there is none, the one that the form names (`asked`), which
    is then of other settings."""
    jobs = LabJob.objects.filter(project=project, kind=JobKind.ESTIMATE).select_related("node")
    of_this = jobs.filter(config_digest=digest).exclude(state=JobState.CANCELLED) if digest else jobs.none()
    job = of_this.order_by("-pk").first() or jobs.filter(pk=natural(asked) or 0).first()
    return None if job is None else shown(job, digest)


def shown(job: LabJob, digest: str) -> EstimateShown:
    told = estimate_of(job.result) if job.state == JobState.DONE else None
    return EstimateShown(job, digest, told, why_waits(job), _too_small(job, told) if told else ())


def _too_small(job: LabJob, told: Estimate) -> tuple[str, ...]:
    """Other nodes that could take the run and whose device has less memory than was measured."""
    kind = "GPU" if told.device == "cuda" else "memory"
    capacities = {capacity.node_id: capacity for capacity in node_capacities()}
    found = []
    for node in nodes_here():
        sizes = [
            device.get("memory_bytes")
            for device in node.info.get("devices", [])
            if (device.get("kind") == "cuda") == (told.device == "cuda")
        ]
        least = min((size for size in sizes if isinstance(size, int)), default=None)
        fits = node.pk in capacities and not why_unschedulable(job, capacities[node.pk]).startswith("is not")
        if fits and least is not None and least < told.peak_memory_bytes:
            has = f"its GPU has {bytes_(least)}" if kind == "GPU" else f"it has {bytes_(least)}"
            found.append(f"needs about {bytes_(told.peak_memory_bytes)}: too much for {node.name}, {has}")
    return tuple(found)


# ---------------------------------------------------------------------- what the run then took


@dataclass(frozen=True)
class Row:
    what: str
    estimate: str
    actual: str
    error: str
    """Of the estimate: (estimate - actual) / actual, with its sign."""


@dataclass(frozen=True)
class Compared:
    rows: tuple[Row, ...]
    job: LabJob


def estimate_compared(run: Run) -> Compared | None:
    """What was estimated at the run's launch beside what its steps took so far; None when nothing was estimated."""
    noted = launch_estimate(run)
    if noted is None:
        return None
    told = estimate_of(noted.estimate)
    seconds, memory = step_figures(run)
    event = compared(told, seconds=seconds, memory=memory)
    actual: dict[str, float] = event.data["actual"] if event else {}
    error: dict[str, float] = event.data["error"] if event else {}
    words = {SECONDS: ("Time per step", seconds_in_words), MEMORY: ("Peak memory", lambda size: str(bytes_(size)))}
    rows = []
    for name, (what, said) in words.items():
        rows.append(
            Row(
                what,
                said(float(getattr(told, name))),
                said(actual[name]) if name in actual else "–",
                signed_percent(error[name]) if name in error else "",
            )
        )
    return Compared(tuple(rows), noted.job)
