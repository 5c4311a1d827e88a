"""From a form that has been checked to its run or sweep: what still blocks a launch, and the launch."""

from cohort.accounts.models import User
from cohort.contamination.selectors import token
from cohort.lab.gate import FIELD
from cohort.launch.creation import run_create, run_launch
from cohort.launch.references import unreadable_references
from cohort.launch.sweeps import sweep_launch
from cohort.runs.models import Run, Sweep
from cohort.web.launch.outlook import overlaps_of
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.sweep import SweepPlan
from grpo_core.config.kinds import AnyConfig


def obstacles(form: RunForm, config: AnyConfig, plan: SweepPlan | None) -> list[str]:
    """Why a launch is refused although every setting is valid; of the first kind that there is."""
    if plan is not None and not plan.ready:
        return ["The sweep is not valid: see its runs at the side."]
    if (expected := token(overlaps_of(form))) and form.texts["overlap_seen"] != expected:
        return ["Items of the evaluation are in the training data. Tick that you have seen it to launch."]
    return list(unreadable_references(config, form.dataset, form.eval_dataset))


def launched(form: RunForm, config: AnyConfig, plan: SweepPlan | None, *, actor: User) -> Run | Sweep:
    """Raises ConfigError, and then nothing is launched."""
    confirmed = {"overlap_seen": form.texts["overlap_seen"], "probe_override": form.texts[FIELD]}
    given = {"project": form.project, "actor": actor, **form.rows, **form.placing, **confirmed}
    name = form.texts["name"].strip()
    if plan is None:
        return run_launch(name=name, settings=config, **given)
    return sweep_launch(
        name=name, fields=plan.fields, zipped=form.texts["sweep_how"] == "zip", configs=plan.configs, **given
    )


def saved_as_run(form: RunForm, config: AnyConfig, *, actor: User) -> Run:
    """A run in the state draft. Raises ConfigError."""
    name = form.texts["name"].strip()
    return run_create(project=form.project, actor=actor, name=name, settings=config, **form.rows, **form.placing)
