"""Rewards made of the reward models that runs trained: the final weights of a run become a component of a version, and
a version says what its models were measured at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, Verifier, VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.runs.base_models import checkpoint_model, model_folder, reward_checkpoints, reward_models
from cohort.runs.models import Checkpoint, Run, RunEvent, RunKind
from cohort.runs.services import NotPossible
from cohort.runs.transitions import current_rows
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.evaluate.preference_report import FACTS

COMPONENT = "reward_model"
"""Kind of the component, and its name in a reward that is made new."""
NAMES_OFFERED = 100
"""Of rewards, while a name is typed; any other may be typed."""


@dataclass(frozen=True)
class TrainedReward:
    """A reward model in a version of a reward, and what the run that trained it measured."""

    component: str
    model: BaseModel
    run: Run
    facts: Mapping[str, Any] | None
    """Data of the run's newest event of type FACTS; None where it held no preferences out."""


def final_weights(run: Run) -> Checkpoint | None:
    """Of a run that trained a reward model; None of another run, and where there are none."""
    if run.kind != RunKind.REWARD_MODEL:
        return None
    finals = current_rows(Checkpoint.objects.filter(run=run, final=True, removed_at=None))
    return finals.order_by("pk").last()


def preference_figures(runs: Iterable[int]) -> dict[int, Mapping[str, Any]]:
    """By run: what the newest event says of its reward model on held-out preferences. In one query."""
    rows = RunEvent.objects.filter(run__in=list(runs), kind=FACTS).order_by("pk").values_list("run", "data")
    return dict(rows)


def trained_rewards(project: Project, versions: Iterable[VerifierVersion]) -> dict[int, list[TrainedReward]]:
    """By version: the reward models in it that runs of the project trained. In two queries, whatever the versions."""
    versions = list(versions)
    models = reward_models(project.pk, [version.spec for version in versions])
    trained = {model.checkpoint_id: (model, model.checkpoint.run) for model in models if model.checkpoint}
    figures = preference_figures(run.pk for _, run in trained.values())
    return {
        version.pk: [
            TrainedReward(component["name"], *trained[number], figures.get(trained[number][1].pk))
            for component in version.spec["components"]
            for number in reward_checkpoints([{"components": [component]}])
            if number in trained
        ]
        for version in versions
    }


@transaction.atomic
def trained_reward_create(
    *, checkpoint: Checkpoint, actor: User, name: str, pass_at: float | None = None
) -> VerifierVersion:
    """A version of the reward `name` with a trained reward model, given the texts that it was trained on.

    A new name gets this one component. Of a reward that there is, the next version has this model in place of its
    component of kind reward_model, and all else as it is. The weights are registered where they are not. `pass_at`:
    from which number on an answer counts as right; None: as it is, in a new reward none.

    Raises NotPossible for a checkpoint that is no reward model's final weights or can be had nowhere, and
    ValidationError of `name` for a reward without such a component, or with several.
    """
    run = checkpoint.run
    config = run.parsed_config
    if not isinstance(config, RewardModelConfig) or not checkpoint.final:
        raise NotPossible("only the final weights of a run that trains a reward model score", code="no_reward_model")
    texts = {"chat": True} if config.data.chat else {"template": config.data.template}
    decided = {} if pass_at is None else {"pass_at": pass_at}
    spec = _next_spec(run.project, name, {"path": model_folder(checkpoint), **texts, **decided})
    checkpoint_model(checkpoint=checkpoint, actor=actor)
    return verifier_version_create(project=run.project, actor=actor, name=name, spec=spec)


def _next_spec(project: Project, name: str, params: dict[str, Any]) -> dict[str, Any]:
    newest = VerifierVersion.objects.filter(verifier__project=project, verifier__name=name).order_by("-number").first()
    if newest is None:
        return {"components": [{"name": COMPONENT, "kind": COMPONENT, "params": params}]}
    components = [dict(component) for component in newest.spec["components"]]
    own = [component for component in components if component["kind"] == COMPONENT]
    if len(own) != 1:
        count = "no component" if not own else f"{len(own)} components"
        why = f"{name} has {count} of kind reward_model, so none can be replaced: give another name"
        raise ValidationError({"name": f"{why}, or write its next version under Rewards."})
    of_the_old = ("path", "revision", "label", "chat", "template")
    own[0]["params"] = {key: value for key, value in own[0]["params"].items() if key not in of_the_old} | params
    return {**newest.spec, "components": components}


def replaceable(project: Project) -> list[str]:
    """Names of the project's rewards of which a version has a component of kind reward_model, newest first."""
    rewards = Verifier.objects.filter(project=project, versions__spec__components__contains=[{"kind": COMPONENT}])
    return list(rewards.order_by("-pk").distinct().values_list("name", flat=True)[:NAMES_OFFERED])
