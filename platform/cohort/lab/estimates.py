"""What was measured of a run before its launch: time and memory, by a short calibration on a worker.

An estimate is of a config, whatever its run is called: the config is measured under one name, so that a run that is
given another keeps its estimate. Any other changed setting needs another estimate.
"""

from typing import Any

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.lab.models import JobKind, JobState, LabJob, LaunchEstimate
from cohort.runs.models import Run
from cohort.runs.schedule import NodeCapacity
from cohort.runs.transitions import current_steps, run_logged
from grpo_core.config.run import RunConfig
from grpo_core.records.estimate import Estimate

NAME = "estimate"
"""What a config is called while it is measured."""


def measured_as(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"name": NAME})


def digest_of(config: RunConfig) -> str:
    """Two configs with the same one have the same estimate."""
    return measured_as(config).digest()


def why_unschedulable(job: LabJob, node: NodeCapacity) -> str:
    """Why this node cannot measure it now, as a clause without a subject; empty when it can."""
    if not node.fits(Run(needs_sandbox=job.needs_sandbox, **job.needs)):
        return "is not the kind of node that the run needs"
    return "trains a run; both would be measured together" if node.busy else ""


def record_launch_estimate(*, run: Run, actor: User) -> LaunchEstimate | None:
    """Store the estimate of exactly this config, in the transaction of its launch; None when there is none."""
    if not isinstance(run.parsed_config, RunConfig):  # no other kind is measured before its launch
        return None
    done = LabJob.objects.filter(project=run.project, kind=JobKind.ESTIMATE, state=JobState.DONE)
    job = done.filter(config_digest=digest_of(run.parsed_config)).order_by("-pk").first()
    if job is None:
        return None
    launch = LaunchEstimate.objects.create(run=run, job=job, estimate=job.result, by=actor)
    estimate = estimate_of(launch.estimate)
    run_logged(
        run=run,
        actor=audit.who(actor),
        kind="estimate_noted",
        data={
            "job": job.pk,
            "config_digest": run.config_digest,
            "seconds_per_step": estimate.seconds_per_step,
            "peak_memory_bytes": estimate.peak_memory_bytes,
        },
    )
    return launch


def estimate_of(result: Any) -> Estimate:
    """The estimate in a job's result, which was checked when it arrived."""
    return Estimate.model_validate(result)


def launch_estimate(run: Run) -> LaunchEstimate | None:
    """What was estimated at the run's last launch."""
    return run.launch_estimates.select_related("job__node", "by").first()


def step_figures(run: Run) -> tuple[list[float], list[float]]:
    """(seconds of each current step, its peak memory in bytes where that was reported), in order."""
    rows = current_steps(run).values_list("seconds", "metrics")
    seconds, memory = [], []
    for spans, metrics in rows.iterator(chunk_size=2000):
        if (total := spans.get("total")) is not None:
            seconds.append(float(total))
        if (peak := metrics.get("memory/peak_bytes")) is not None:
            memory.append(float(peak))
    return seconds, memory
