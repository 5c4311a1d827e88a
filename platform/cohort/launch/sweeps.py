"""Sweeps: a named set of runs that differ in some fields, launched together or not at all, and cancelled together.

Every run of a sweep has a low priority in its project: whatever else the project launches goes before those that wait.
Between projects priority has no meaning, so a sweep takes no other project's turn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.audit import services as audit
from cohort.launch.creation import run_launch
from cohort.runs.models import Priority, Run, RunState, Sweep
from cohort.runs.services import run_cancel
from cohort.runs.transitions import ENDED
from grpo_core.config.kinds import AnyConfig

MAX_RUNS = 32
"""Of one sweep."""


@transaction.atomic
def sweep_launch(
    *,
    project: Project,
    actor: User,
    name: str,
    fields: Mapping[str, Sequence[str]],
    zipped: bool,
    configs: Sequence[AnyConfig],
    form_token: str = "",
    **made: Any,
) -> Sweep:
    """Launch a run of each config, or none: raises ConfigError as `creation.run_launch` does, which takes `made`.

    `fields`: the values that were given for each field that differs. The same form sent twice makes one sweep.
    """
    project = lock_project(project)
    digests = [config.digest() for config in configs]
    before = Sweep.objects.filter(project=project, created_by=actor, form_token=form_token) if form_token else ()
    for sweep in before:
        if list(sweep.runs.order_by("pk").values_list("config_digest", flat=True)) == digests:
            return sweep
    sweep = Sweep.objects.create(
        project=project,
        name=name,
        fields={field: list(values) for field, values in fields.items()},
        zipped=zipped,
        form_token=form_token,
        created_by=actor,
    )
    after = {"name": name, "fields": sweep.fields, "zipped": zipped, "runs": len(configs)}
    audit.log(actor=audit.who(actor), kind="sweep_launched", subject=f"sweep:{sweep.pk}", project=project, after=after)
    for config in configs:
        run_launch(
            project=project,
            actor=actor,
            **{**made, "priority": Priority.LOW},
            name=config.name,
            settings=config,
            form_token=form_token,
            sweep=sweep,
        )
    return sweep


@transaction.atomic
def sweep_cancel(*, sweep: Sweep, actor: User) -> int:
    """Cancel every run of it that has not ended, and return how many. One whose record is being made is left to end."""
    left = Run.objects.filter(sweep=sweep).exclude(state__in=(*ENDED, RunState.SEALING, RunState.DRAFT))
    runs = list(left.order_by("pk"))
    for run in runs:
        run_cancel(run=run, actor=actor, reason=f"the sweep {sweep.name} was cancelled")
    return len(runs)
