"""From rows of the catalog and settings to the complete, checked config of a run, whichever its kind."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.catalog.models import BaseModel, DatasetContent, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite, data_part, input_path, suite_part
from cohort.runs.models import DatasetRole, Run
from grpo_core.config.kinds import CONFIGS, AnyConfig, judge_of, reward_of
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import RunConfig
from grpo_core.config.sft import DistillConfig, SftConfig
from grpo_core.config.stage import Kind
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.rewards import Rubric

_ALWAYS = {"name": "the run's name", "model.path": "the base model", "model.revision": "the base model"}
_DATASET = {"data.path": "the dataset", "data.hub": "the dataset"}
_PROBLEMS = _DATASET | {"data.format": "the dataset", "data.columns": "the dataset"}
_EVALUATED = {
    "eval.path": "the held-out dataset",
    "eval.format": "the held-out dataset",
    "eval.columns": "the held-out dataset",
    "eval.hub": "the held-out dataset",
    "eval.suites": "the suites",
    "eval.reward": "the held-out verifier",
}
_CONVERSATIONS = _DATASET | {"data.more": "the further datasets", "data.heldout_path": "the held-out conversations"}
CHOSEN: dict[Kind, dict[str, str]] = {
    "grpo": {**_ALWAYS, **_PROBLEMS, **_EVALUATED, "reward": "the reward"},
    "sft": {**_ALWAYS, **_CONVERSATIONS, **_EVALUATED},
    "distill": {**_ALWAYS, **_CONVERSATIONS, **_EVALUATED},
    "reward_model": {
        **_ALWAYS,
        **_DATASET,
        "data.heldout_path": "the held-out preferences",
        "data.replay_path": "the earlier preferences",
    },
    "sample": {**_ALWAYS, **_PROBLEMS, "reward": "the reward"},
}
"""By kind, the fields of a config that rows decide; settings may not set them."""
CONTENTS: dict[Kind, DatasetContent] = {
    "grpo": DatasetContent.PROBLEMS,
    "sft": DatasetContent.CONVERSATIONS,
    "distill": DatasetContent.CONVERSATIONS,
    "reward_model": DatasetContent.PREFERENCES,
    "sample": DatasetContent.PROBLEMS,
}
"""By kind, what its dataset holds."""


@dataclass(frozen=True)
class FurtherData:
    """Datasets besides the first: only of the kinds whose config has a field for them."""

    more: Sequence[PromptDataset] = ()
    """Read after the first as one dataset with it: `data.more`."""
    heldout: PromptDataset | None = None
    """Whose loss or accuracy is measured: `data.heldout_path`."""
    replay: PromptDataset | None = None
    """Preferences that an earlier reward model was trained on: `data.replay_path`."""

    @property
    def named(self) -> Iterator[tuple[str, PromptDataset]]:
        """Each with the name that a request has for it."""
        yield from ((f"more.{at}", dataset) for at, dataset in enumerate(self.more))
        yield from ((name, row) for name, row in (("heldout", self.heldout), ("replay", self.replay)) if row)

    @property
    def part(self) -> dict[str, Any]:
        """What it says in a config's `data`."""
        paths: dict[str, Any] = {"more": [input_path(dataset) for dataset in self.more]} if self.more else {}
        if self.heldout is not None:
            paths["heldout_path"] = input_path(self.heldout)
        if self.replay is not None:
            paths["replay_path"] = input_path(self.replay)
        return paths


NO_FURTHER = FurtherData()


def further_of(run: Run) -> FurtherData:
    """What a run reads besides its dataset."""
    rows = [(row.role, row.dataset) for row in run.run_datasets.select_related("dataset")]
    by_role = dict(rows)
    return FurtherData(
        more=tuple(dataset for role, dataset in rows if role == DatasetRole.MORE),
        heldout=by_role.get(DatasetRole.HELDOUT),
        replay=by_role.get(DatasetRole.REPLAY),
    )


def run_config(
    *,
    kind: Kind = "grpo",
    name: str,
    base_model: BaseModel,
    dataset: PromptDataset,
    further: FurtherData = NO_FURTHER,
    eval_dataset: PromptDataset | None,
    verifier_version: VerifierVersion | None,
    eval_verifier_version: VerifierVersion | None = None,
    settings: Mapping[str, Any],
    suites: Sequence[ChosenSuite] = (),
) -> AnyConfig:
    """The complete, checked config of a run of this kind made from these rows.

    `settings` is a nested part of the kind's config, such as {"preset": "dapo", "sampling": {"group_size": 8}, "seed":
    1}; what it leaves out comes from the preset, then from the defaults. Suites are in the config in the order given.
    Raises ConfigError whose problems carry the dotted path of each faulty field.
    """
    refused = [
        FieldProblem(path, f"is decided by {what} that was chosen; leave it out of the settings")
        for path, what in CHOSEN[kind].items()
        if _holds(settings, path)
    ]
    refused += _needless(kind, further, eval_dataset, verifier_version, eval_verifier_version, suites)
    refused += _contents_unfit(kind, dataset, further, eval_dataset)
    if refused:
        raise config_error(refused)
    chosen: dict[str, Any] = {
        "name": name,
        "model": {"path": base_model.path, "revision": base_model.revision or None},
        "data": {**data_part(dataset), **further.part},
    }
    if verifier_version is not None:
        chosen["reward"] = verifier_version.spec
    evaluated: dict[str, Any] = {}
    if eval_dataset is not None:
        evaluated |= data_part(eval_dataset)
    if eval_verifier_version is not None:
        evaluated["reward"] = eval_verifier_version.spec
    if suites:
        evaluated["suites"] = [suite_part(suite) for suite in suites]
    if evaluated:
        chosen["eval"] = evaluated
    config = CONFIGS[kind].from_dict({**_merged(settings, chosen), "kind": kind}, source="this run")
    unfit = [
        *_objective_unfit(config, dataset, further),
        *_nothing_left(config, dataset, further, eval_dataset),
        *_rubrics_unfit(config, dataset, eval_dataset, eval_verifier_version),
        *_adapters_unfit(config, base_model),
    ]
    if unfit:
        raise config_error(unfit)
    return config


def rubrics_of(config: AnyConfig) -> list[Rubric]:
    """Of the reward, and of what judges held-out problems."""
    return [Rubric(reward) for reward in (reward_of(config), judge_of(config)) if reward is not None]


def config_error(problems: list[FieldProblem]) -> ConfigError:
    listed = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"this run is not valid:\n{listed}", tuple(problems))


def _needless(
    kind: Kind,
    further: FurtherData,
    eval_dataset: PromptDataset | None,
    verifier_version: VerifierVersion | None,
    eval_verifier_version: VerifierVersion | None,
    suites: Sequence[ChosenSuite],
) -> Iterator[FieldProblem]:
    """Rows for which a run of this kind has no place, and a reward that it lacks."""
    decided = CHOSEN[kind]
    needs_reward = "reward" in decided
    if needs_reward and verifier_version is None:
        yield FieldProblem("verifier_version", "choose what completions are scored by")
    given = {
        "verifier_version": None if needs_reward else verifier_version,
        "eval_dataset": None if "eval.path" in decided else eval_dataset,
        "eval_verifier_version": None if "eval.reward" in decided else eval_verifier_version,
        "eval.suites": None if "eval.suites" in decided else suites or None,
        "more": None if "data.more" in decided else further.more or None,
        "heldout": None if "data.heldout_path" in decided else further.heldout,
        "replay": None if "data.replay_path" in decided else further.replay,
    }
    for field, row in given.items():
        if row is not None:
            yield FieldProblem(field, f"a run of kind {kind} has none; leave it out")


def _contents_unfit(
    kind: Kind, dataset: PromptDataset, further: FurtherData, eval_dataset: PromptDataset | None
) -> Iterator[FieldProblem]:
    """Datasets that hold other rows than the run reads there."""
    wanted = CONTENTS[kind]
    for field, row in (("dataset", dataset), *further.named):
        if row.content != wanted:
            yield FieldProblem(field, _other_content(row, wanted))
    if eval_dataset is not None and eval_dataset.content != DatasetContent.PROBLEMS:
        yield FieldProblem("eval_dataset", _other_content(eval_dataset, DatasetContent.PROBLEMS))
    if kind == DistillConfig.kind and dataset.content == wanted and dataset.sampled_by_id is None:
        yield FieldProblem(
            "dataset",
            f"{dataset.name} was not sampled by a run, so who answered is not known: choose a dataset that a sampling "
            "run wrote, or fine-tune on it (kind sft)",
        )


def _objective_unfit(config: AnyConfig, dataset: PromptDataset, further: FurtherData) -> Iterator[FieldProblem]:
    """Preferences of which the objective makes nothing."""
    if not isinstance(config, RewardModelConfig):
        return
    wanted, other = ("scores", "bradley_terry") if config.objective == "regression" else ("pairs", "regression")
    for field, row in (("dataset", dataset), *further.named):
        if row.content == DatasetContent.PREFERENCES and row.format in ("pairs", "scores") and row.format != wanted:
            yield FieldProblem(
                field,
                f"{row.name} holds {row.format}, and objective {config.objective} learns from {wanted}: choose another "
                f"dataset, or objective {other}",
            )


def _other_content(dataset: PromptDataset, wanted: DatasetContent) -> str:
    return f"{dataset.name} holds {dataset.content}, and {wanted} are needed here: choose another dataset"


def _nothing_left(
    config: AnyConfig, dataset: PromptDataset, further: FurtherData, eval_dataset: PromptDataset | None
) -> Iterator[FieldProblem]:
    """Held-out parts that leave nothing to train on, or that are trained on."""
    rows = sum(row.problems for row in (dataset, *further.more))
    taken = min(rows, config.data.limit or rows)
    match config:
        case SftConfig():
            field, held, what = "data.holdout", config.data.holdout, "conversations"
        case RewardModelConfig():
            field, held, what = "data.holdout", config.data.holdout, "rows"
        case RunConfig() if eval_dataset is None:
            field, held, what = "eval.holdout", config.eval.holdout, "problems"
        case _:
            field, held, what = "", 0, ""
    if field and held >= taken:
        used = f"{rows:,} {what}" + (f", of which {taken:,} are used" if taken < rows else "")
        yield FieldProblem(
            field,
            f"nothing would be left to train on: {dataset.name} has {used}; hold out fewer, or choose a held-out "
            "dataset",
        )
    trained_on = {dataset.sha256, *(row.sha256 for row in further.more)}
    for name, row in (("eval_dataset", eval_dataset), ("heldout", further.heldout)):
        if row is not None and row.sha256 in trained_on:
            yield FieldProblem(
                name,
                f"is the same file as the dataset to train on, so it would say nothing of new {row.content}: choose "
                f"another, or hold out some of the training {row.content}",
            )


def _rubrics_unfit(
    config: AnyConfig,
    dataset: PromptDataset,
    eval_dataset: PromptDataset | None,
    eval_verifier_version: VerifierVersion | None,
) -> Iterator[FieldProblem]:
    """Fields of problems that the reward, or what judges held-out problems, reads and that are not there."""
    reward, judge = reward_of(config), judge_of(config)
    if reward is not None:
        yield from _columns_missing(Rubric(reward), dataset, field="dataset")
    if judge is None:
        return
    if eval_dataset is not None:
        yield from _columns_missing(Rubric(judge), eval_dataset, field="eval_dataset")
    elif eval_verifier_version is not None and reward is not None:
        yield from _columns_missing(Rubric(judge), dataset, field="eval_verifier_version")


def _adapters_unfit(config: AnyConfig, base_model: BaseModel) -> Iterator[FieldProblem]:
    """Adapters go on only as they are; the trainer, which also sees on which layers, would refuse it later."""
    adapter, lora = base_model.adapter, config.model.lora
    if adapter is None or config.model.adapter != "continue":
        return
    if (adapter["rank"], adapter["alpha"]) != (lora.rank, lora.alpha):
        yield FieldProblem(
            "model.lora.rank",
            f"{base_model.name} holds adapters of rank {adapter['rank']}, alpha {adapter['alpha']:g}; the run has rank "
            f"{lora.rank}, alpha {lora.alpha:g}. Set the same to train them further, or Adapters of the base: merge",
        )


def _columns_missing(rubric: Rubric, dataset: PromptDataset, *, field: str) -> Iterator[FieldProblem]:
    """A problem of `field`, the dataset's in the run form, for each field that not every problem has."""
    for column, component in sorted(rubric.columns.items()):
        having = dataset.columns.get(column, 0)
        if having < dataset.problems:
            there = ", ".join(["prompt", *dataset.columns])
            lack = "has no field" if having == 0 else f"lacks, in {dataset.problems - having:,} problems, the field"
            yield FieldProblem(
                field,
                f"{lack} {column!r}, which the reward's component {component!r} reads; it has {there}. Choose another "
                "dataset or reward, or add the field to every line",
            )


def _holds(settings: Mapping[str, Any], path: str) -> bool:
    here: Any = settings
    for piece in path.split("."):
        if not isinstance(here, Mapping) or piece not in here:
            return False
        here = here[piece]
    return True


def _merged(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the chosen values merged into them. A part that is not a mapping stays, for the check to report."""
    merged = dict(settings)
    for key, value in chosen.items():
        part = settings.get(key, {})
        if not isinstance(value, Mapping):
            merged[key] = value
        elif isinstance(part, Mapping):
            merged[key] = {**part, **value}
    return merged
