"""From a stage's fields, in which rows of the catalog stand by their names, to the rows that its run is made of.

On the platform `path` of a model or of data is the name of a base model or dataset; `reward` and `eval.reward` are
`NAME@VERSION` of a reward, or its components; `eval.suites` are `NAME@VERSION` of suites, or entries with `suite` and
what the run decides of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import OWN, ChosenSuite, suite_part
from cohort.catalog.services import verifier_version_create
from cohort.launch.configs import CONTENTS, FurtherData
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.pipeline.config import PipelineConfig, Stage
from grpo_core.pipeline.references import fill
from grpo_core.pipeline.stages import check_stages


class Mention(NamedTuple):
    """A row that a stage names."""

    path: str
    what: str
    """base model, dataset, reward or suite."""
    name: str


@dataclass(frozen=True)
class CatalogRows:
    """Of a project, those that a pipeline names; rewards and suites by NAME@VERSION."""

    base_models: Mapping[str, BaseModel]
    datasets: Mapping[str, PromptDataset]
    rewards: Mapping[str, VerifierVersion]
    suites: Mapping[str, EvalSuiteVersion]

    def has(self, mention: Mention) -> bool:
        return (
            mention.name
            in {
                "base model": self.base_models,
                "dataset": self.datasets,
                "reward": self.rewards,
                "suite": self.suites,
            }[mention.what]
        )


def mentions(stage: Stage) -> Iterator[Mention]:
    """Every row that the stage names; a part of another shape is left for the check to report."""
    parts = {name: _mapping(stage.fields.get(name)) for name in ("model", "data", "eval")}
    yield from _texts("base model", {"model.path": parts["model"].get("path")})
    data = {f"data.{name}": parts["data"].get(name) for name in ("path", "heldout_path", "replay_path")}
    more = {f"data.more.{at}": entry for at, entry in enumerate(_list(parts["data"].get("more")))}
    yield from _texts("dataset", data | more | {"eval.path": parts["eval"].get("path")})
    yield from _texts("reward", {"reward": stage.fields.get("reward"), "eval.reward": parts["eval"].get("reward")})
    suites = {f"eval.suites.{at}": _suite_name(entry) for at, entry in enumerate(_list(parts["eval"].get("suites")))}
    yield from _texts("suite", suites)


def catalog_rows(project: Project, stages: Sequence[Stage]) -> CatalogRows:
    """In four queries, whatever the stages."""
    names: dict[str, set[str]] = {}
    for stage in stages:
        for mention in mentions(stage):
            names.setdefault(mention.what, set()).add(mention.name)

    def versions(what: str) -> set[str]:
        return {name.rpartition("@")[0] for name in names.get(what, ())}

    models = BaseModel.objects.filter(project=project, name__in=names.get("base model", ()))
    datasets = PromptDataset.objects.filter(project=project, name__in=names.get("dataset", ()))
    rewards = VerifierVersion.objects.filter(verifier__project=project, verifier__name__in=versions("reward"))
    suites = EvalSuiteVersion.objects.filter(suite__project=project, suite__name__in=versions("suite"))
    return CatalogRows(
        {model.name: model for model in models},
        {dataset.name: dataset for dataset in datasets},
        {f"{row.verifier.name}@{row.number}": row for row in rewards.select_related("verifier")},
        {f"{row.suite.name}@{row.number}": row for row in suites.select_related("suite")},
    )


def check_pipeline(project: Project, pipeline: PipelineConfig) -> None:
    """Raises ConfigError that lists every row that the project does not have, and every fault of a stage's fields."""
    stages = [pipeline.stage(slug) for slug in pipeline.order]
    rows = catalog_rows(project, stages)
    faults = [
        FieldProblem(f"stages.{stage.slug}.{mention.path}", _absent(mention), "unknown_row")
        for stage in stages
        for mention in mentions(stage)
        if not rows.has(mention)
    ]
    faults += [fault for stage in stages for fault in _other_content(stage, rows)]
    if not faults:
        spelt = {stage.slug: {"kind": stage.kind, **_spelt_out(stage.fields, rows)} for stage in stages}
        check_stages(pipeline.model_copy(update={"stages": {slug: spelt[slug] for slug in pipeline.stages}}))
        return
    raise ConfigError.listing("this pipeline is not valid", faults)


@dataclass(frozen=True)
class StageInputs:
    """What earlier stages gave, by their names."""

    models: Mapping[str, BaseModel]
    """Weights and reward models."""
    datasets: Mapping[str, PromptDataset]


def run_rows(
    *, project: Project, actor: User, pipeline: PipelineConfig, stage: Stage, inputs: StageInputs
) -> dict[str, Any]:
    """What `launch.creation.run_create` takes for the stage's run. A reward that is given by its components becomes a
    version of the stage's own reward. Raises ConfigError for a row that is gone, ValidationError for such a reward."""
    rows = catalog_rows(project, [stage])
    if absent := [mention for mention in mentions(stage) if not rows.has(mention)]:
        raise ConfigError.listing(
            f"stage {stage.slug} cannot be launched",
            [FieldProblem(mention.path, _absent(mention), "unknown_row") for mention in absent],
        )
    paths = {name: model.path for name, model in inputs.models.items()}
    filled = fill(stage.kind, stage.fields, {**dict.fromkeys(inputs.datasets, ""), **paths})
    settings = {name: value for name, value in filled.items() if name not in ("name", "reward")}
    title = f"{pipeline.name[:79]} {stage.slug}"

    def dataset(part: Mapping[str, Any], name: str, reference: str) -> PromptDataset | None:
        if isinstance(source := part.get(reference), str):
            return inputs.datasets[source]
        return rows.datasets[part[name]] if isinstance(part.get(name), str) else None

    def reward(given: Any, end: str) -> VerifierVersion | None:
        if given is None:
            return None
        if isinstance(given, str):
            return rows.rewards[given]
        return verifier_version_create(project=project, actor=actor, name=f"{title}{end}", spec=given)

    model, data, evaluation = (_mapping(stage.fields.get(name)) for name in ("model", "data", "eval"))
    source = model.get("stage")
    made: dict[str, Any] = {
        "kind": stage.kind,
        "name": stage.fields.get("name") or title,
        "base_model": inputs.models[source] if isinstance(source, str) else rows.base_models[model["path"]],
        "dataset": dataset(data, "path", "stage"),
        "further": FurtherData(
            more=tuple(
                inputs.datasets[entry["stage"]] if isinstance(entry, Mapping) else rows.datasets[entry]
                for entry in _list(data.get("more"))
            ),
            heldout=dataset(data, "heldout_path", "heldout_stage"),
            replay=dataset(data, "replay_path", "replay_stage"),
        ),
        "eval_dataset": dataset(evaluation, "path", ""),
        "verifier_version": reward(filled.get("reward"), ""),
        "eval_verifier_version": reward(_mapping(filled.get("eval")).get("reward"), " held-out"),
        "suites": tuple(_chosen(entry, rows) for entry in _list(evaluation.get("suites"))),
    }
    for part, decided in _DECIDED.items():
        if part in settings:
            left = {name: value for name, value in settings[part].items() if name not in decided}
            settings[part] = left
    return {**made, "settings": settings}


_DECIDED = {
    "model": ("path",),
    "data": ("path", "more", "heldout_path", "replay_path"),
    "eval": ("path", "suites", "reward"),
}
"""Fields that rows decide."""


def _spelt_out(fields: Mapping[str, Any], rows: CatalogRows) -> dict[str, Any]:
    """The fields with rewards and suites as a config has them, to be checked before rows of stages exist."""
    spelt = deepcopy(dict(fields))
    if isinstance(spelt.get("reward"), str):
        spelt["reward"] = rows.rewards[spelt["reward"]].spec
    evaluation = spelt.get("eval")
    if isinstance(evaluation, dict):
        if isinstance(evaluation.get("reward"), str):
            evaluation["reward"] = rows.rewards[evaluation["reward"]].spec
        if isinstance(evaluation.get("suites"), list):
            evaluation["suites"] = [suite_part(_chosen(entry, rows)) for entry in evaluation["suites"]]
    return spelt


def _other_content(stage: Stage, rows: CatalogRows) -> Iterator[FieldProblem]:
    """Named datasets that hold other rows than the stage reads."""
    for mention in mentions(stage):
        row = rows.datasets.get(mention.name) if mention.what == "dataset" else None
        due = "problems" if mention.path == "eval.path" else CONTENTS[stage.kind]
        if row is not None and row.content != due:
            message = f"{row.name} holds {row.content}, and {due} are needed here: name another dataset"
            yield FieldProblem(f"stages.{stage.slug}.{mention.path}", message, "other_content")


def _chosen(entry: Any, rows: CatalogRows) -> ChosenSuite:
    version = rows.suites[_suite_name(entry)]
    given = entry if isinstance(entry, Mapping) else {}
    own = {name: given.get(name) for name in OWN}
    return ChosenSuite(version, **(own if "margin" in given else own | {"margin": version.margin}))


def _suite_name(entry: Any) -> Any:
    return entry.get("suite") if isinstance(entry, Mapping) else entry


def _absent(mention: Mention) -> str:
    form = "; give it as NAME@VERSION" if mention.what in ("reward", "suite") else ""
    return f"no {mention.what} of the project is called {mention.name!r}{form}"


def _texts(what: str, values: Mapping[str, Any]) -> Iterator[Mention]:
    yield from (Mention(path, what, value) for path, value in values.items() if isinstance(value, str))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
