"""Why a job of the reward lab waits, for its page."""

from datetime import timedelta

from django.db.models.functions import Now

from cohort.lab.estimates import why_unschedulable
from cohort.lab.models import JobKind, JobState, LabJob
from cohort.nodes.sandboxes import no_sandbox, sandbox_of
from cohort.nodes.selectors import nodes_here
from cohort.runs.schedule import node_capacities

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
    here = list(nodes_here())
    if not here:
        return "no node is here: start a worker (docs/operations.md)"
    if all(node.draining for node in here):
        return "every node that is here is draining and takes no new job"
    if job.needs_sandbox and not any(sandbox_of(node).works for node in here):
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
