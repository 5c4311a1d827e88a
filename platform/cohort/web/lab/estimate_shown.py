"""An estimate as pages show it: its progress, whether it matches the form's config, and what the run then took."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from cohort.accounts.models import Project
from cohort.base.formatting import bytes_, natural, seconds_in_words, signed_percent
from cohort.lab.estimates import estimate_of, launch_estimate, step_figures, why_unschedulable
from cohort.lab.models import OPEN, JobKind, JobState, LabJob
from cohort.nodes.engines import no_sandbox, sandbox_of
from cohort.nodes.services import nodes_here
from cohort.runs.models import Run
from cohort.runs.schedule import node_capacities
from grpo_core.records.estimate import MEMORY, SECONDS, Estimate, compared

TAKEN_WITHIN = timedelta(seconds=45)
"""A message that got lost is sent again within this; a worker that is free takes the job then."""


def why_waits(job: LabJob) -> str:
    """The first thing that blocks it, as a clause; empty when it does not wait."""
    if job.state != JobState.WAITING:
        return ""
    if job.needs_sandbox and (why := no_sandbox()):
        return f"it runs code, and no node has a sandbox that works: {why}"
    if job.kind == JobKind.ESTIMATE and (why := _no_place(job)):
        return why
    nodes = list(nodes_here())
    if not nodes:
        return "no node is here: start a worker (docs/operations.md)"
    if all(node.draining for node in nodes):
        return "every node that is here is draining and takes no new job"
    if job.needs_sandbox and not any(sandbox_of(node).works for node in nodes):
        return "it runs code, and no node that is here has a sandbox that works"
    if ahead := LabJob.objects.filter(state=JobState.WAITING, pk__lt=job.pk).count():
        return f"{ahead} other{'' if ahead == 1 else 's'} before it wait{'s' if ahead == 1 else ''} too"
    if running := LabJob.objects.filter(state=JobState.RUNNING).count():
        return f"the lab's workers do {running} other{'' if running == 1 else 's'}; each does one at a time"
    if LabJob.objects.filter(pk=job.pk, created_at__lt=Now() - TAKEN_WITHIN).exists():
        return (
            "no worker of the lab takes it: on a machine that has a node's token, start "
            "`celery -A worker.celery_app worker --queues lab` (docs/operations.md)"
        )
    return "a worker takes it within seconds"


def _no_place(job: LabJob) -> str:
    """Why no node that is here can measure a run now; empty when one can, and when none is here."""
    reasons = [(node.name, why_unschedulable(job, node)) for node in node_capacities()]
    return "; ".join(f"{name} {why}" for name, why in reasons) if all(why for _, why in reasons) else ""


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


def _range(estimate: Estimate, name: str, words: Callable[[float], Any]) -> str:
    if name not in estimate.spread:
        return ""
    low, high = estimate.spread[name]
    return f"{words(low)} to {words(high)}"


def job_of_config(project: Project, kind: JobKind, job_id: str, digest: str) -> LabJob | None:
    """The newest of this kind for the config with this digest; without one, the one that the form names (`job_id`),
    which is then of other settings."""
    jobs = LabJob.objects.filter(project=project, kind=kind).select_related("node")
    matching = jobs.filter(config_digest=digest).exclude(state=JobState.CANCELLED) if digest else jobs.none()
    named = jobs.filter(pk=natural(job_id) or 0) if job_id else jobs.none()
    return matching.order_by("-pk").first() or named.first()


def estimate_shown(project: Project, job_id: str, digest: str) -> dict[str, Any] | None:
    """The measurement for the form (`job_of_config`)."""
    job = job_of_config(project, JobKind.ESTIMATE, job_id, digest)
    return None if job is None else shown(job, digest)


def shown(job: LabJob, digest: str) -> dict[str, Any]:
    """A measurement for the template: under way, done, or ended otherwise. `digest` is of the form's config, empty when
    that is not valid; `share` of a part is that of the step, in percent."""
    estimate = estimate_of(job.result) if job.state == JobState.DONE else None
    context = {
        "job": job,
        "digest": digest,
        "live": job.state in OPEN,
        "stale": job.config_digest != digest,
        "progress": job.progress or {},
        "measured": estimate,
        "why": why_waits(job),
    }
    if estimate is None:
        return context
    whole = estimate.seconds_per_step
    return context | {
        "per_step": seconds_in_words(whole),
        "step_range": _range(estimate, SECONDS, seconds_in_words),
        "memory": bytes_(estimate.peak_memory_bytes),
        "memory_range": _range(estimate, MEMORY, bytes_),
        "parts": [
            {"name": PARTS.get(name, name), "seconds": seconds_in_words(seconds), "share": 100 * seconds / whole}
            for name, seconds in estimate.parts.items()
            if whole > 0
        ],
        "warnings": [*estimate.warnings, *_too_small(job, estimate)],
    }


def _too_small(job: LabJob, estimate: Estimate) -> tuple[str, ...]:
    """Other nodes that could take the run and whose device has less memory than was measured."""
    what = "its GPU" if estimate.device == "cuda" else "it"
    capacities = {capacity.node_id: capacity for capacity in node_capacities()}
    warnings = []
    for node in nodes_here():
        sizes = [
            device.get("memory_bytes")
            for device in node.info.get("devices", [])
            if (device.get("kind") == "cuda") == (estimate.device == "cuda")
        ]
        least = min((size for size in sizes if isinstance(size, int)), default=None)
        fits = node.pk in capacities and not why_unschedulable(job, capacities[node.pk]).startswith("is not")
        if fits and least is not None and least < estimate.peak_memory_bytes:
            needed, has = bytes_(estimate.peak_memory_bytes), f"{what} has {bytes_(least)}"
            warnings.append(f"needs about {needed}: too much for {node.name}, {has}")
    return tuple(warnings)


# ---------------------------------------------------------------------- what the run then took


def estimate_compared(run: Run) -> dict[str, Any] | None:
    """The estimate at the run's launch against what its steps took so far; None when nothing was estimated. `error` is
    that of the estimate: (estimate - actual) / actual, with its sign."""
    launch = launch_estimate(run)
    if launch is None:
        return None
    estimate = estimate_of(launch.estimate)
    seconds, memory = step_figures(run)
    event = compared(estimate, seconds=seconds, memory=memory)
    actual: dict[str, float] = event.data["actual"] if event else {}
    error: dict[str, float] = event.data["error"] if event else {}
    words = {SECONDS: ("Time per step", seconds_in_words), MEMORY: ("Peak memory", bytes_)}
    rows = [
        {
            "what": what,
            "estimate": as_text(float(getattr(estimate, name))),
            "actual": as_text(actual[name]) if name in actual else "–",
            "error": signed_percent(error[name]) if name in error else "",
        }
        for name, (what, as_text) in words.items()
    ]
    return {"rows": rows, "job": launch.job}
