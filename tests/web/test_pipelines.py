"""Pipelines in the browser: made from YAML with every fault at its line, each stage launched once when its inputs are
there, out of date when they change."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from cohort.accounts.models import Membership, Project, User
from cohort.audit.models import AuditEntry
from cohort.background.reconcile import stages_launch
from cohort.background.tasks import launch_stages
from cohort.catalog.models import BaseModel, DatasetContent, PromptDataset
from cohort.pipelines import services
from cohort.pipelines.models import Pipeline, StageRun
from cohort.pipelines.states import pipeline_states
from cohort.runs.attempts import attempt_inputs
from cohort.runs.base_models import model_folder
from cohort.runs.models import Run, RunState
from cohort.runs.services import run_cancel, run_sealed
from tests.factories.pipelines import TEXT, run_of, stage, states
from tests.factories.runs import UNPROBED, Maker, put_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("maker")]


def faults(raised: pytest.ExceptionInfo[ValidationError]) -> list[str]:
    return raised.value.message_dict["text"]


# ---------------------------------------------------------------------- made


def test_made_and_not_started(pipeline: Pipeline) -> None:
    assert [row.slug for row in pipeline.stages.all()] == ["first", "second"]
    assert states(pipeline) == {"first": "ready", "second": "waiting"}
    assert not Run.objects.exists()
    assert stages_launch() == []


def test_each_fault_has_its_line(ours: Project, oscar: User) -> None:
    text = TEXT.replace("stage: first", "stage: third").replace("path: tiny", "path: absent")
    with pytest.raises(ValidationError) as raised:
        services.pipeline_create(project=ours, actor=oscar, text=text)
    (fault,) = faults(raised)
    assert fault.startswith("Line 5: stages.second.model.stage: ")
    with pytest.raises(ValidationError) as raised:
        services.pipeline_create(project=ours, actor=oscar, text=text.replace("stage: third", "stage: first"))
    (fault,) = faults(raised)
    assert fault.startswith("Line 11: stages.first.model.path: ")


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("r1 + exact@1\n    eval: {holdout: 4}\n    optim: {steps: 10}", "nobody@1", "stages.first.reward"),
        ("steps: 10", "steps: 0", "stages.first.optim.steps"),
        ("{holdout: 4}\n    optim: {steps: 20}", "{holdout: 4, suites: [gsm8k@7]}", "stages.second.eval.suites.0"),
        ("model: {path: tiny}", "model: {stage: second}", "stages."),
    ],
)
def test_what_is_refused(ours: Project, oscar: User, old: str, new: str, where: str) -> None:
    assert old in TEXT
    with pytest.raises(ValidationError) as raised:
        services.pipeline_create(project=ours, actor=oscar, text=TEXT.replace(old, new))
    assert all(f": {where}" in fault or fault.startswith(where) for fault in faults(raised))
    assert not Pipeline.objects.exists()


def test_a_name_is_taken_once(pipeline: Pipeline, ours: Project, oscar: User) -> None:
    with pytest.raises(ValidationError):
        services.pipeline_create(project=ours, actor=oscar, text=TEXT)
    assert Pipeline.objects.count() == 1


def test_a_dataset_of_other_rows_is_refused(ours: Project, oscar: User, dataset: PromptDataset) -> None:
    PromptDataset.objects.filter(pk=dataset.pk).update(content=DatasetContent.PREFERENCES)
    with pytest.raises(ValidationError) as raised:
        services.pipeline_create(project=ours, actor=oscar, text=TEXT)
    assert [fault.split(": ")[1] for fault in faults(raised)] == ["stages.first.data.path", "stages.second.data.path"]


# ---------------------------------------------------------------------- launched


def test_a_stage_begins_when_its_inputs_are_there(
    started: Pipeline, succeed: Callable[..., Run], django_capture_on_commit_callbacks: Any
) -> None:
    first = run_of(started, "first")
    assert (first.state, first.steps_total, first.name) == (RunState.QUEUED, 10, "two first")
    assert states(started) == {"first": "queued", "second": "waiting"}
    succeed(started, "first")
    launch_stages(first.pk)
    second = run_of(started, "second")
    assert (second.state, second.steps_total) == (RunState.QUEUED, 20)
    final = first.checkpoints.get(final=True)
    assert second.base_model.checkpoint == final
    assert second.parsed_config.model.path == model_folder(final)
    made = StageRun.objects.get(run=second)
    assert made.given == {"first": pipeline_states(started)["first"].output.digest}
    succeed(started, "second")
    assert states(started) == {"first": "finished", "second": "finished"}


def test_nothing_is_launched_twice_and_a_lost_message_is_repaired(
    started: Pipeline, succeed: Callable[..., Run]
) -> None:
    first = succeed(started, "first")
    assert stages_launch() == [started.pk]
    for _ in range(2):
        launch_stages(first.pk)
        assert stages_launch() == []
    assert Run.objects.count() == 2
    assert BaseModel.objects.exclude(checkpoint=None).count() == 1


def test_nothing_is_launched_in_the_name_of_who_left(
    started: Pipeline, oscar: User, succeed: Callable[..., Run]
) -> None:
    first = succeed(started, "first")
    Membership.objects.filter(user=oscar, project=started.project).update(role="viewer")
    launch_stages(first.pk)
    assert stages_launch() == []
    assert states(started)["second"] == "ready"
    assert not Pipeline.objects.get(pk=started.pk).active
    assert AuditEntry.objects.filter(kind="pipeline_paused", actor="platform").count() == 1


def test_weights_on_their_way_are_waited_for(started: Pipeline, succeed: Callable[..., Run]) -> None:
    first = succeed(started, "first", stored=False)
    launch_stages(first.pk)
    assert states(started)["second"] == "waiting"
    checkpoint = first.checkpoints.get(final=True)
    assert checkpoint.requested_at is not None
    assert stages_launch() == []
    checkpoint.stored_at, checkpoint.requested_at = checkpoint.at, None
    checkpoint.save()
    assert stages_launch() == [started.pk]
    assert states(started)["second"] == "queued"


def test_a_reward_that_was_never_probed_blocks_its_stage(pipeline: Pipeline, oscar: User) -> None:
    services.pipeline_start(pipeline=pipeline, actor=oscar)
    now = pipeline_states(pipeline)["first"]
    assert (now.state, now.run.state) == ("refused", RunState.DRAFT)
    assert "never probed" in now.reason
    assert stages_launch() == []
    services.pipeline_start(pipeline=pipeline, actor=oscar, override=UNPROBED)
    assert states(pipeline)["first"] == "queued"
    assert Run.objects.count() == 1


def test_a_reason_too_short_to_launch_with_is_refused_at_the_start(pipeline: Pipeline, oscar: User) -> None:
    with pytest.raises(ValidationError, match="needs 10 characters, and this one has 7"):
        services.pipeline_start(pipeline=pipeline, actor=oscar, override="looking")
    pipeline.refresh_from_db()
    assert (pipeline.active, pipeline.override, Run.objects.count()) == (False, "", 0)


def test_a_stage_whose_input_failed_or_is_gone_is_not_launched(
    started: Pipeline, oscar: User, succeed: Callable[..., Run]
) -> None:
    first = run_of(started, "first")
    run_cancel(run=first, actor=oscar)
    assert states(started) == {"first": "failed", "second": "waiting"}
    with pytest.raises(ValidationError, match="first failed"):
        services.stage_start(stage=stage(started, "second"), actor=oscar)
    services.stage_retry(stage=stage(started, "first"), actor=oscar)
    assert states(started)["first"] == "queued"
    first = succeed(started, "first")
    first.checkpoints.filter(final=True).update(removed_at=first.created_at)
    assert stages_launch() == []
    assert states(started) == {"first": "lost", "second": "waiting"}
    with pytest.raises(ValidationError, match="has lost what it gave"):
        services.stage_start(stage=stage(started, "second"), actor=oscar)


def test_an_archived_model_is_said_and_not_launched(started: Pipeline, succeed: Callable[..., Run]) -> None:
    Pipeline.objects.filter(pk=started.pk).update(active=False)
    succeed(started, "first")
    BaseModel.objects.filter(name="tiny").update(name="elsewhere")
    row = stage(started, "first")
    services.stage_again(stage=row, actor=started.started_by)
    now = pipeline_states(Pipeline.objects.get(pk=started.pk))["first"]
    assert now.state == "refused"
    assert "no base model of the project is called 'tiny'" in now.reason


def test_one_stage_by_itself(pipeline: Pipeline, oscar: User, succeed: Callable[..., Run]) -> None:
    Pipeline.objects.filter(pk=pipeline.pk).update(override=UNPROBED)
    services.stage_start(stage=stage(pipeline, "first"), actor=oscar)
    assert states(pipeline)["first"] == "queued"
    succeed(pipeline, "first")
    assert stages_launch() == []  # the pipeline was not started
    with pytest.raises(ValidationError):
        services.stage_start(stage=stage(pipeline, "first"), actor=oscar)


def test_pause_and_go_on(started: Pipeline, oscar: User, succeed: Callable[..., Run]) -> None:
    services.pipeline_pause(pipeline=started, actor=oscar)
    assert states(started)["first"] == "paused"
    services.pipeline_start(pipeline=started, actor=oscar, override=UNPROBED)
    assert states(started)["first"] == "queued"
    services.pipeline_pause(pipeline=started, actor=oscar)
    first = succeed(started, "first")
    launch_stages(first.pk)
    assert states(started) == {"first": "finished", "second": "ready"}


def test_a_changed_stage_is_out_of_date_with_all_below_it(
    started: Pipeline, oscar: User, succeed: Callable[..., Run]
) -> None:
    launch_stages(succeed(started, "first").pk)
    succeed(started, "second")
    row, before = stage(started, "first"), run_of(started, "first")
    text = services.stage_text(row).replace("steps: 10", "steps: 11")
    services.stage_change(stage=row, actor=oscar, text=text, seen=started.digest)
    assert states(started) == {"first": "out_of_date", "second": "out_of_date"}
    assert stages_launch() == []
    assert services.stage_again(stage=stage(started, "first"), actor=oscar) == ["first", "second"]
    assert states(started) == {"first": "queued", "second": "waiting"}
    assert run_of(started, "first").steps_total == 11
    assert [made.run for made in StageRun.objects.filter(stage=row)] == [before, run_of(started, "first")]
    with pytest.raises(ValidationError, match="has not ended"):
        services.stage_again(stage=stage(started, "first"), actor=oscar)


def test_a_change_on_an_older_page_is_not_stored(pipeline: Pipeline, oscar: User) -> None:
    row = stage(pipeline, "first")
    text, before = services.stage_text(row), pipeline.digest
    services.stage_change(stage=row, actor=oscar, text=text.replace("steps: 10", "steps: 11"), seen=before)
    with pytest.raises(ValidationError, match="changed meanwhile"):
        services.stage_change(
            stage=stage(pipeline, "first"), actor=oscar, text=text.replace("steps: 10", "steps: 12"), seen=before
        )
    assert stage(pipeline, "first").fields["optim"] == {"steps": 11}


def test_every_action_is_in_the_audit_log(started: Pipeline, oscar: User, succeed: Callable[..., Run]) -> None:
    launch_stages(succeed(started, "first").pk)
    services.pipeline_pause(pipeline=started, actor=oscar)
    entries = AuditEntry.objects.filter(subject=f"pipeline:{started.pk}").order_by("pk")
    assert [entry.kind for entry in entries] == [
        *("pipeline_created", "pipeline_started", "stage_launched", "stage_launched", "pipeline_paused"),
    ]
    assert {entry.actor for entry in entries} == {"user:oscar"}


# ---------------------------------------------------------------------- other kinds

KINDS = """
name: kinds
stages:
  pairs:
    kind: sample
    rows: pairs
    model: {path: tiny}
    data: {path: additions}
    reward: r1 + exact@1
  judge:
    kind: reward_model
    model: {path: tiny}
    data: {stage: pairs}
    optim: {steps: 3}
    eval: {before: false, after: false}
  rl:
    model: {path: tiny}
    data: {path: additions}
    reward: {components: [{name: judged, kind: reward_model, params: {stage: judge}}]}
    eval: {holdout: 4, reward: r1 + exact@1}
"""


def test_a_dataset_and_a_reward_model_are_passed_on(
    ours: Project, oscar: User, dataset: PromptDataset, maker: Maker, succeed: Callable[..., Run]
) -> None:
    pipeline = services.pipeline_create(project=ours, actor=oscar, text=KINDS)
    services.pipeline_start(pipeline=pipeline, actor=oscar, override=UNPROBED)
    sampling = run_of(pipeline, "pairs")
    assert (sampling.kind, sampling.verifier_version.verifier.name) == ("sample", "r1 + exact")
    put_in(sampling, "sealing")
    run_sealed(run=sampling)
    assert states(pipeline)["pairs"] == "lost"  # it succeeded, and its dataset has not come
    rows = PromptDataset.objects.create(
        project=ours,
        name="kinds pairs",
        content=DatasetContent.PREFERENCES,
        format="plain",
        sha256="ab" * 32,
        size=10,
        problems=6,
        sampled_by=sampling,
        created_by=oscar,
    )
    assert stages_launch() == [pipeline.pk]
    judge = run_of(pipeline, "judge")
    assert (judge.kind, judge.dataset, judge.verifier_version) == ("reward_model", rows, None)
    launch_stages(succeed(pipeline, "judge").pk)
    final = judge.checkpoints.get(final=True)
    rl = run_of(pipeline, "rl")
    (component,) = rl.parsed_config.reward.components
    assert component.params["path"] == model_folder(final)
    assert rl.verifier_version.verifier.name == "kinds rl"
    paths = {file.path for _, file in attempt_inputs(run=rl)}
    assert {f"{model_folder(final)}/{name}" for name in final.files} <= paths
    assert StageRun.objects.get(run=rl).given == {"judge": pipeline_states(pipeline)["judge"].output.digest}
