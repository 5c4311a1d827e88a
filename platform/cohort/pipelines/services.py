"""What people do with pipelines: make one, start, pause, retry, run again from a stage on, change a stage; and what the
platform does: launch a stage once its inputs are there.

Every write locks the pipeline's row first, so that no stage is launched twice however many ask at once. A message that
gets lost is repaired by the reconciler, which calls `pipeline_advance` too.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import rfc8785
import yaml
from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import Membership, Project, Role, User, reaches
from cohort.accounts.quotas import lock_project
from cohort.audit import services as audit
from cohort.base.storable import Refused, storable
from cohort.catalog.models import BaseModel
from cohort.lab.gate import MIN_REASON_CHARS, override_reason
from cohort.launch.creation import run_create, run_submit
from cohort.pipelines.models import Pipeline, PipelineStage, StageRun
from cohort.pipelines.rows import StageInputs, check_pipeline, run_rows
from cohort.pipelines.states import LIVE, StageNow, pipeline_states
from cohort.runs.base_models import checkpoint_model
from cohort.runs.models import RunState
from cohort.runs.services import run_pause, run_resume, run_retry
from cohort.runs.transitions import IllegalTransition
from grpo_core.config.stage import yaml_content
from grpo_core.config.yaml_text import dump_yaml, line_of
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.pipeline.config import PipelineConfig

MOST_PIPELINES = 500
"""Of a project."""

log = logging.getLogger(__name__)


@transaction.atomic
def pipeline_create(*, project: Project, actor: User, text: str) -> Pipeline:
    """Store a pipeline of YAML; nothing is launched. Raises ValidationError of `text` with every fault and its line."""
    project = lock_project(project)
    config = _read(project, text)
    if Pipeline.objects.filter(project=project, name=config.name).exists():
        raise ValidationError({"text": f"name: the project has a pipeline called {config.name!r}. Choose another."})
    if Pipeline.objects.filter(project=project).count() >= MOST_PIPELINES:
        raise ValidationError(f"{project.name} has {MOST_PIPELINES} pipelines, which is the most.")
    content = config.model_dump(mode="json")
    pipeline = Pipeline.objects.create(
        project=project, name=config.name, config=content, digest=_digest(content), created_by=actor
    )
    PipelineStage.objects.bulk_create(
        PipelineStage(pipeline=pipeline, slug=slug, position=position, kind=stage.kind, fields=dict(stage.fields))
        for position, slug in enumerate(config.order)
        if (stage := config.stage(slug))
    )
    _logged(pipeline, actor, "pipeline_created", after={"name": config.name, "digest": pipeline.digest})
    return pipeline


@transaction.atomic
def pipeline_start(*, pipeline: Pipeline, actor: User, override: str = "") -> None:
    """Have stages begin once their inputs are there, and go on with what was paused. What was refused is tried again.

    `override`: why stages are launched although their reward is blocked by its probe; empty keeps them blocked. Raises
    ValidationError for one that is too long or too short.
    """
    _lock(pipeline)
    try:
        pipeline.override = override_reason(override)
    except ConfigError as error:
        raise ValidationError({"override": str(error)}) from None
    if 0 < len(pipeline.override) < MIN_REASON_CHARS:
        needed = f"A reason needs {MIN_REASON_CHARS} characters, and this one has {len(pipeline.override)}."
        raise ValidationError({"override": f"{needed} Say why, or leave it empty."})
    pipeline.active, pipeline.started_by = True, actor
    pipeline.save(update_fields=["active", "started_by", "override"])
    pipeline.stages.exclude(refusal="").update(refusal="")
    _logged(pipeline, actor, "pipeline_started", reason=pipeline.override)
    for now in pipeline_states(pipeline).values():
        if now.run is not None and now.state == "paused":
            run_resume(run=now.run, actor=actor)
        elif now.run is not None and now.run.state == RunState.DRAFT:
            _submit(pipeline, now.stage, actor)
    _advance(pipeline)


@transaction.atomic
def pipeline_pause(*, pipeline: Pipeline, actor: User) -> None:
    """No stage begins any more, and runs that have not ended are paused: each stops at a checkpoint."""
    _lock(pipeline)
    pipeline.active = False
    pipeline.save(update_fields=["active"])
    _logged(pipeline, actor, "pipeline_paused")
    for now in pipeline_states(pipeline).values():
        if now.run is None or now.state not in ("queued", "running"):
            continue
        try:
            run_pause(run=now.run, actor=actor, reason=f"the pipeline {pipeline.name[:80]} was paused")
        except (IllegalTransition, Refused) as why:  # its record is being made, or it is being cancelled
            log.info("pipeline %s: run %s is not paused: %s", pipeline.pk, now.run.pk, why)


@transaction.atomic
def stage_start(*, stage: PipelineStage, actor: User) -> None:
    """Launch one stage now, also of a pipeline that is not started. Raises ValidationError when it has a run already,
    or when an input is not there."""
    now = _now(stage)
    if now.run is not None:
        raise ValidationError(f"{stage.slug} has a run, which is {now.words}. Retry it, or run it again from here on.")
    if now.given is None:
        raise ValidationError(f"{stage.slug} cannot be launched: {now.reason}.")
    _logged(stage.pipeline, actor, "stage_requested", data={"stage": stage.slug})
    _launch(stage.pipeline, now, actor)


@transaction.atomic
def stage_retry(*, stage: PipelineStage, actor: User) -> None:
    """A run that failed resumes from its newest checkpoint; a stage that was refused is launched again. Raises
    ValidationError for any other."""
    now = _now(stage)
    if now.state == "failed" and now.run is not None:
        try:
            run_retry(run=now.run, actor=actor, reason="a stage of a pipeline")
        except (IllegalTransition, Refused) as why:
            raise ValidationError(f"{stage.slug} cannot be retried: {why}.") from None
    elif now.state == "refused" and now.run is not None:
        _submit(stage.pipeline, stage, actor)
    elif now.state == "refused" and now.given is not None:
        _launch(stage.pipeline, now, actor)
    else:
        raise ValidationError(f"{stage.slug} is {now.words}; only a stage that failed or was refused is retried.")
    _logged(stage.pipeline, actor, "stage_retried", data={"stage": stage.slug})


@transaction.atomic
def stage_again(*, stage: PipelineStage, actor: User) -> list[str]:
    """Run this stage and all that hang on it again, from new runs; returns their names. Earlier runs stay.

    Raises ValidationError while one of them has a run that has not ended.
    """
    pipeline = stage.pipeline
    _lock(pipeline)
    states = pipeline_states(pipeline)
    below = pipeline.parsed_config.below(stage.slug)
    if live := [slug for slug in below if states[slug].state in LIVE]:
        raise ValidationError(
            f"{', '.join(live)} {'has a run' if len(live) == 1 else 'have runs'} that has not ended: "
            "cancel it on its page first."
        )
    before = {slug: states[slug].run.pk for slug in below if states[slug].run is not None}  # type: ignore[union-attr]
    pipeline.stages.filter(slug__in=below).update(current=None, refusal="")
    pipeline.active, pipeline.started_by = True, actor
    pipeline.save(update_fields=["active", "started_by"])
    _logged(pipeline, actor, "stages_again", data={"stages": list(below), "runs": before})
    _advance(pipeline)
    return list(below)


@transaction.atomic
def stage_change(*, stage: PipelineStage, actor: User, text: str, seen: str) -> None:
    """Give a stage other fields: YAML of its own part. It is out of date then, with all that hang on it, until it is
    run again. `seen`: the digest of the pipeline that the person edited. Raises ValidationError with every fault."""
    pipeline = stage.pipeline
    _lock(pipeline)
    if seen != pipeline.digest:
        raise ValidationError(
            "The pipeline was changed meanwhile. Your text is below and is not stored: compare, and save again."
        )
    try:
        fields: Any = yaml_fields(text)
        content = {**pipeline.config, "stages": {**pipeline.config["stages"], stage.slug: fields}}
        config = PipelineConfig.from_dict(content)
        check_pipeline(pipeline.project, config)
    except ConfigError as error:
        raise ValidationError({"text": _lines(error, text, below=f"stages.{stage.slug}.")}) from None
    before, content = pipeline.digest, config.model_dump(mode="json")
    if before == _digest(content):
        raise ValidationError("Nothing was changed.")
    pipeline.config, pipeline.digest = content, _digest(content)
    pipeline.save(update_fields=["config", "digest"])
    for position, slug in enumerate(config.order):  # another reference may change the order
        parsed = config.stage(slug)
        pipeline.stages.filter(slug=slug).update(position=position, kind=parsed.kind, fields=dict(parsed.fields))
    pipeline.stages.filter(slug=stage.slug).update(refusal="")
    _logged(
        pipeline,
        actor,
        "stage_changed",
        before={"digest": before},
        after={"digest": pipeline.digest},
        data={"stage": stage.slug},
    )
    if pipeline.active:
        _advance(pipeline)


@transaction.atomic
def pipeline_advance(pipeline_id: int) -> int | None:
    """Launch every stage whose inputs are there. Called when a run of it succeeds and by the reconciler; called twice
    it launches nothing twice. Returns the pipeline's id when it launched one."""
    pipeline = Pipeline.objects.select_related("project", "started_by").get(pk=pipeline_id)
    _lock(pipeline)
    if not pipeline.active or not _may_launch(pipeline):
        return None
    return pipeline.pk if _advance(pipeline) else None


def run_advance(run_id: int) -> None:
    """The run succeeded: launch what waits for it."""
    pipelines = Pipeline.objects.filter(active=True, stages__current__run=run_id)
    for pk in pipelines.values_list("pk", flat=True):
        pipeline_advance(pk)


def waiting_pipelines() -> list[int]:
    """Ids of started pipelines with a stage that no run was made for."""
    waiting = Pipeline.objects.filter(active=True, stages__current=None, stages__refusal="")
    return sorted(set(waiting.values_list("pk", flat=True)))


# ---------------------------------------------------------------------- under the pipeline's lock


def _lock(pipeline: Pipeline) -> None:
    """Locks the row and reads it anew into `pipeline`."""
    pipeline.refresh_from_db(from_queryset=Pipeline.objects.select_for_update())


def _now(stage: PipelineStage) -> StageNow:
    _lock(stage.pipeline)
    return pipeline_states(stage.pipeline)[stage.slug]


def _may_launch(pipeline: Pipeline) -> bool:
    """Whether the person in whose name stages are launched may still do so; else the pipeline is paused."""
    assert pipeline.started_by is not None
    member = Membership.objects.filter(project=pipeline.project, user=pipeline.started_by).first()
    if pipeline.started_by.is_active and member is not None and reaches(member.role, Role.OPERATOR):
        return True
    pipeline.active = False
    pipeline.save(update_fields=["active"])
    why = f"{pipeline.started_by.username}, who started it, may no longer launch runs in this project"
    audit.log(
        actor="platform",
        kind="pipeline_paused",
        subject=f"pipeline:{pipeline.pk}",
        project=pipeline.project,
        reason=why,
    )
    return False


def _advance(pipeline: Pipeline) -> bool:
    """Whether a stage was launched."""
    assert pipeline.started_by is not None
    launched = False
    for now in pipeline_states(pipeline).values():
        if now.state == "ready":
            launched |= _launch(pipeline, now, pipeline.started_by)
    return launched


def _launch(pipeline: Pipeline, now: StageNow, actor: User) -> bool:
    """Make the stage's run and put it into the queue; whether a run was made. A refusal is kept on the stage: it is
    not tried again by itself. Weights that are still on their way from a node are waited for."""
    assert now.given is not None
    stage, config = now.stage, pipeline.parsed_config
    try:
        with transaction.atomic():
            inputs = _inputs(pipeline, now, actor)
            if any(not _arrived(model) for model in inputs.models.values()):
                return False
            rows = run_rows(
                project=pipeline.project, actor=actor, pipeline=config, stage=config.stage(stage.slug), inputs=inputs
            )
            run = run_create(project=pipeline.project, actor=actor, **rows)
            made = StageRun.objects.create(stage=stage, run=run, digest=now.digest, given=dict(now.given))
    except (ConfigError, ValidationError, Refused) as error:
        _refuse(pipeline, stage, actor, error)
        return False
    stage.current, stage.refusal = made, ""
    stage.save(update_fields=["current", "refusal"])
    data = {"stage": stage.slug, "run": run.pk, "digest": now.digest, "given": dict(now.given)}
    _logged(pipeline, actor, "stage_launched", data=data)
    _submit(pipeline, stage, actor)
    return True


def _submit(pipeline: Pipeline, stage: PipelineStage, actor: User) -> None:
    """Put the stage's draft into the queue. Where that is refused it stays a draft, which a person may launch on its
    page, with a reason if need be."""
    assert stage.current is not None
    try:
        with transaction.atomic():
            run_submit(run=stage.current.run, actor=actor, probe_override=pipeline.override)
    except (ConfigError, ValidationError, Refused) as error:
        _refuse(pipeline, stage, actor, error)
        return
    stage.refusal = ""
    stage.save(update_fields=["refusal"])


def _refuse(pipeline: Pipeline, stage: PipelineStage, actor: User, error: Exception) -> None:
    words = " ".join(error.messages) if isinstance(error, ValidationError) else str(error)
    problems = error.problems if isinstance(error, ConfigError) else ()
    stage.refusal = storable("\n".join([words, *(f"{problem}" for problem in problems if str(problem) not in words)]))
    stage.save(update_fields=["refusal"])
    why = audit.fitted(stage.refusal, "the rest is on the pipeline's page")
    _logged(pipeline, actor, "stage_refused", reason=why, data={"stage": stage.slug})


def _inputs(pipeline: Pipeline, now: StageNow, actor: User) -> StageInputs:
    """The rows that its inputs gave; a final checkpoint becomes a base model, once."""
    states = pipeline_states(pipeline)
    outputs = {name: states[name].output for name in pipeline.parsed_config.inputs[now.stage.slug]}
    models = {
        name: checkpoint_model(checkpoint=output.checkpoint, actor=actor)
        for name, output in outputs.items()
        if output is not None and output.checkpoint is not None
    }
    datasets = {name: output.dataset for name, output in outputs.items() if output is not None and output.dataset}
    return StageInputs(models, datasets)


def _arrived(model: BaseModel) -> bool:
    return model.checkpoint is None or model.checkpoint.stored_at is not None or model.checkpoint.requested_at is None


# ---------------------------------------------------------------------- text


def yaml_fields(text: str) -> Any:
    """The fields of one stage. Raises ConfigError."""
    fields = yaml_content(storable(text), "the stage")
    if not isinstance(fields, dict):
        raise ConfigError("a stage has fields with values")
    return fields


def stage_text(stage: PipelineStage) -> str:
    """Its fields as YAML, as `stage_change` reads them."""
    return dump_yaml({"kind": stage.kind, **stage.fields})


def _read(project: Project, text: str) -> PipelineConfig:
    text = storable(text.replace("\r\n", "\n"))
    try:
        config = PipelineConfig.from_text(text, source="this text")
        check_pipeline(project, config)
    except ConfigError as error:
        raise ValidationError({"text": _lines(error, text)}) from None
    return config


def _lines(error: ConfigError, text: str, *, below: str = "") -> list[str]:
    """Each fault, with the line that it is in where there is one."""
    return [_at_line(problem, text, below) for problem in error.problems] or [str(error)]


def _at_line(problem: FieldProblem, text: str, below: str) -> str:
    path = problem.path.removeprefix(below)
    pieces = [int(piece) if piece.isdecimal() else piece for piece in path.split(".")]
    try:
        line = line_of(text, pieces) if path else 0
    except yaml.YAMLError:
        line = 0
    return f"Line {line}: {path}: {problem.message}" if line else str(problem)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(rfc8785.dumps(dict(content))).hexdigest()


def _logged(pipeline: Pipeline, actor: User, kind: str, **entry: Any) -> None:
    audit.log(actor=audit.who(actor), kind=kind, subject=f"pipeline:{pipeline.pk}", project=pipeline.project, **entry)
