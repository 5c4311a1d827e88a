"""A reward made of a reward model that a run trained: its versions, the files that jobs and runs get, what it shows."""

from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.lab.services import config_job_request, evaluation_request, job_request
from cohort.launch.configs import run_config
from cohort.launch.creation import run_create, run_submit
from cohort.review.rescores import rescore_request
from cohort.runs.attempts import attempt_inputs
from cohort.runs.base_models import model_folder
from cohort.runs.models import Checkpoint, RunEvent
from cohort.runs.trained_rewards import trained_reward_create, trained_rewards
from grpo_core.errors import ConfigError
from tests.factories.kinds import preferences
from tests.factories.rescores import ended_run
from tests.factories.runs import UNPROBED, Maker, add_checkpoint, put_in
from tests.web.pages import html
from tests.web.run_page import queries

pytestmark = pytest.mark.django_db

NAMES = ("config.json", "model.safetensors", "tokenizer.json")
FILES = {name: {"size": 10 + place, "sha256": f"{place}" * 64} for place, name in enumerate(NAMES)}
ACCURACY = {"share": 0.75, "low": 0.3, "high": 0.95, "pairs": 4, "prompts": 4}
FIGURES = {
    "accuracy": ACCURACY,
    "calibration": {"bins": [], "ece": 0.23},
    "rewards": {"mean": 0.5, "std": 2.0},
    "length": {"rho": None, "chosen_shorter": None, "chosen_longer": None},
}


def add_trained(maker: Maker, name: str, *, stored: bool = True, facts: Any = FIGURES, **data: Any) -> Checkpoint:
    """Final weights of a run that trained a reward model and succeeded."""
    dataset = maker.project.datasets.filter(content="preferences").first() or preferences(maker.project, maker.actor)
    run = run_create(
        kind="reward_model",
        project=maker.project,
        actor=maker.actor,
        name=name,
        base_model=maker.base_model,
        dataset=dataset,
        settings={"optim": {"steps": 5}, "data": {"holdout": 4, **data}},
    )
    checkpoint = add_checkpoint(maker.attempt(run, state="finished"), 5, final=True, stored=stored)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files=FILES)
    if facts is not None:
        RunEvent.objects.create(
            run=run,
            attempt=checkpoint.attempt,
            seq=1,
            at=run.created_at,
            actor="trainer",
            kind="reward_model_facts",
            data=facts,
        )
    put_in(run, "succeeded")
    return Checkpoint.objects.select_related("run__project", "attempt__node").get(pk=checkpoint.pk)


@pytest.fixture
def trained(maker: Maker) -> Checkpoint:
    return add_trained(maker, "judge one")


@pytest.fixture
def version(maker: Maker, trained: Checkpoint) -> VerifierVersion:
    return trained_reward_create(checkpoint=trained, actor=maker.actor, name="judge", pass_at=0.5)


def component(version: VerifierVersion) -> dict[str, Any]:
    (own,) = (part for part in version.spec["components"] if part["kind"] == "reward_model")
    return dict(own["params"])


def of_models(files: list[dict[str, Any]]) -> dict[str, int]:
    """Path → run of the files that are a checkpoint's."""
    return {file["path"]: file["run"] for file in files if "run" in file}


def files_of(checkpoint: Checkpoint) -> dict[str, int]:
    return {f"inputs/checkpoint-{checkpoint.pk}/{name}": checkpoint.run_id for name in NAMES}


# ---------------------------------------------------------------------- versions


def test_a_reward_scores_by_the_weights_and_the_texts_of_training(maker: Maker, version: VerifierVersion) -> None:
    model = BaseModel.objects.get(path=component(version)["path"])
    assert model.checkpoint is not None
    assert (version.number, model.name) == (1, "judge one final")
    assert (component(version)["template"], component(version)["pass_at"]) == ("{prompt}{completion}", 0.5)
    chat = trained_reward_create(checkpoint=add_trained(maker, "of chats", chat=True), actor=maker.actor, name="chats")
    assert (component(chat)["chat"], component(chat).get("pass_at")) == (True, None)
    own = trained_reward_create(
        checkpoint=add_trained(maker, "own", template="Q {prompt} A {completion}"), actor=maker.actor, name="own"
    )
    assert component(own)["template"] == "Q {prompt} A {completion}"


def test_each_iteration_is_a_version_with_the_rest_as_it_was(maker: Maker, trained: Checkpoint) -> None:
    rule = {"name": "right", "kind": "exact", "weight": 1.0, "params": {"extract": "whole"}}
    old = {"name": "liked", "kind": "reward_model", "weight": 0.2}
    params = {"path": "elsewhere", "label": "GOOD", "transform": "sigmoid", "chat": True, "pass_at": 0.7}
    made = {"project": maker.project, "actor": maker.actor, "name": "both"}
    first = verifier_version_create(**made, spec={"components": [rule, {**old, "params": params}], "success": "right"})
    second = trained_reward_create(checkpoint=trained, actor=maker.actor, name="both")
    assert (second.verifier, second.number) == (first.verifier, 2)
    assert second.spec["components"][0] == first.spec["components"][0]
    assert (second.spec["success"], second.spec["components"][1]["weight"]) == ("right", 0.2)
    assert {name: component(second).get(name) for name in ("path", "transform", "pass_at")} == {
        "path": model_folder(trained),
        "transform": "sigmoid",
        "pass_at": 0.7,
    }
    assert (component(second).get("label"), component(second).get("chat", False)) == (None, False)
    again = trained_reward_create(checkpoint=trained, actor=maker.actor, name="both")
    assert again == second
    third = trained_reward_create(checkpoint=add_trained(maker, "judge two"), actor=maker.actor, name="both")
    assert third.number == 3
    assert BaseModel.objects.filter(checkpoint=trained).count() == 1


def test_a_rule_alone_has_nothing_to_replace(operator: Client, maker: Maker, trained: Checkpoint) -> None:
    name = maker.verifier_version.verifier.name
    answer = operator.post(address(trained), {"name": name})
    assert answer.status_code == 422
    assert f"{name} has no component of kind reward_model" in html(answer)
    assert maker.verifier_version.verifier.versions.count() == 1
    assert not BaseModel.objects.filter(checkpoint=trained).exists(), "nothing is done by halves"


def test_only_a_reward_models_final_weights_score(operator: Client, maker: Maker) -> None:
    run = maker.run("adder", state="training")
    final = add_checkpoint(maker.attempt(run), 4, final=True, stored=True)
    step = add_checkpoint(add_trained(maker, "judge").attempt, 2, stored=True)
    assert [operator.get(address(other)).status_code for other in (final, step)] == [404, 404]


# ---------------------------------------------------------------------- files


def test_every_job_that_scores_gets_its_files(
    maker: Maker, base_model: BaseModel, trained: Checkpoint, version: VerifierVersion
) -> None:
    given: dict[str, Any] = {"project": maker.project, "actor": maker.actor}
    answers = {"dataset": maker.dataset, "base_model": base_model}
    jobs = [
        job_request(**given, kind="probe", version=version, dataset=maker.dataset),
        job_request(**given, kind="try", spec=version.spec, dataset=maker.dataset, options={"rows": 2}),
        job_request(**given, kind="sample", version=version, **answers),
        job_request(**given, kind="best_of_n", version=version, ground_truth=maker.verifier_version, **answers),
        job_request(**given, kind="best_of_n", version=maker.verifier_version, ground_truth=version, **answers),
        evaluation_request(base_model=base_model, actor=maker.actor, dataset=maker.dataset, verifier_version=version),
    ]
    assert [of_models(job.inputs) for job in jobs] == [files_of(trained)] * len(jobs)
    without = job_request(**given, kind="probe", version=maker.verifier_version, dataset=maker.dataset)
    assert of_models(without.inputs) == {}


def test_an_estimate_gets_them_of_both_rewards_and_a_preview_none(
    maker: Maker, base_model: BaseModel, trained: Checkpoint, version: VerifierVersion
) -> None:
    other = add_trained(maker, "judge two")
    heldout = trained_reward_create(checkpoint=other, actor=maker.actor, name="held out")
    rows = {
        "base_model": base_model,
        "dataset": maker.dataset,
        "eval_dataset": None,
        "verifier_version": version,
        "eval_verifier_version": heldout,
    }
    config = run_config(name="measured", settings={"eval": {"holdout": 4}}, **rows)  # type: ignore[arg-type]
    given: dict[str, Any] = {"project": maker.project, "actor": maker.actor, "config": config, **rows}
    assert of_models(config_job_request(kind="estimate", **given).inputs) == {**files_of(trained), **files_of(other)}
    assert of_models(config_job_request(kind="preview", **given).inputs) == {}


def test_a_rescore_gets_them(maker: Maker, trained: Checkpoint, version: VerifierVersion) -> None:
    rescore = rescore_request(run=ended_run(maker), version=version, actor=maker.actor)
    assert of_models(rescore.job.inputs) == files_of(trained)


def test_one_that_is_not_here_is_not_waited_for_by_a_job_or_a_run(maker: Maker) -> None:
    """Its node is to send it; before that neither is taken, in words."""
    away = add_trained(maker, "far judge", stored=False)
    version = trained_reward_create(checkpoint=away, actor=maker.actor, name="far")
    with pytest.raises(ConfigError, match="far judge final is not on the platform yet"):
        job_request(project=maker.project, actor=maker.actor, kind="probe", version=version, dataset=maker.dataset)
    maker.verifier_version = version
    run = run_create(**maker._named("early"), settings={"eval": {"holdout": 4}})
    with pytest.raises(ConfigError, match="far judge final is not on the platform yet"):
        run_submit(run=run, actor=maker.actor, probe_override=UNPROBED)
    Checkpoint.objects.filter(pk=away.pk).update(stored_at=run.created_at)
    run_submit(run=run, actor=maker.actor, probe_override=UNPROBED)
    paths = {file.path for _, file in attempt_inputs(run=run)}
    assert files_of(away).keys() <= paths


def test_a_checkpoint_of_another_project_is_refused(
    maker: Maker, trained: Checkpoint, version: VerifierVersion
) -> None:
    theirs = Project.objects.get(slug="theirs")
    foreign = verifier_version_create(project=theirs, actor=maker.actor, name="taken", spec=version.spec)
    with pytest.raises(ConfigError, match="no registered checkpoint of") as refused:
        job_request(project=theirs, actor=maker.actor, kind="probe", version=foreign)
    assert [problem.path for problem in refused.value.problems] == ["reward"]


# ---------------------------------------------------------------------- pages


def address(checkpoint: Checkpoint) -> str:
    return f"/p/ours/runs/{checkpoint.run_id}/checkpoints/{checkpoint.pk}/reward/"


def test_from_the_run_to_the_version_and_what_it_was_measured_at(
    operator: Client, viewer: Client, maker: Maker, trained: Checkpoint
) -> None:
    run = f"/p/ours/runs/{trained.run_id}/"
    assert address(trained) in html(operator.get(run))
    assert address(trained) not in html(viewer.get(run))
    form = html(operator.get(address(trained)))
    assert "75.0\u00a0%" in form
    answer = operator.post(address(trained), {"name": "judge", "pass_at": "0.5"})
    version = VerifierVersion.objects.get(verifier__name="judge")
    assert answer["Location"] == f"/p/ours/rewards/{version.verifier_id}/?version=1"
    assert address(trained) in html(operator.get(f"/p/ours/models/{trained.base_model.pk}/"))
    page = html(viewer.get(answer["Location"]))
    assert "30.0\u00a0% to 95.0\u00a0%" in page
    assert run in page


def test_every_version_shows_its_own_accuracy_at_no_more_queries(
    viewer: Client, operator: Client, maker: Maker, version: VerifierVersion
) -> None:
    place = f"/p/ours/rewards/{version.verifier_id}/?version=1"
    before = queries(lambda: viewer.get(place))
    for number, share in ((2, 0.8), (3, 0.85)):
        facts = {**FIGURES, "accuracy": {**ACCURACY, "share": share}}
        checkpoint = add_trained(maker, f"judge {number}", facts=facts)
        trained_reward_create(checkpoint=checkpoint, actor=maker.actor, name="judge")
    assert queries(lambda: viewer.get(place)) == before
    page = html(viewer.get(place))
    assert [f"held-out accuracy {share}.0\u00a0%" in page for share in (75, 80, 85)] == [True] * 3


def test_one_without_held_out_pairs_says_so(viewer: Client, maker: Maker) -> None:
    checkpoint = add_trained(maker, "blind", facts=None)
    version = trained_reward_create(checkpoint=checkpoint, actor=maker.actor, name="blind")
    ((only,),) = trained_rewards(maker.project, [version]).values()
    assert (only.run, only.facts) == (checkpoint.run, None)
    assert "the run held no preferences out" in html(viewer.get(f"/p/ours/rewards/{version.verifier_id}/"))
