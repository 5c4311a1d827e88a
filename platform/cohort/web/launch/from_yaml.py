"""The run form filled from a config as text, of whichever kind: its rows are looked up in the project."""

from collections.abc import Iterable, Iterator
from typing import Any

from cohort.accounts.models import Project
from cohort.catalog.models import PromptDataset
from cohort.catalog.run_inputs import data_part, input_path
from cohort.web.launch.choices import Choices
from cohort.web.launch.run_form import EXTRA_FIELDS, RunForm
from cohort.web.launch.schema import texts_of
from grpo_core.config.kinds import AnyConfig, config_from_text, reward_of
from grpo_core.config.reward import RewardConfig
from grpo_core.config.sft import SftConfig

_UPLOAD = "(inputs/<sha256>.jsonl). Upload it under Datasets"


def form_from_yaml(project: Project, text: str) -> RunForm:
    """A filled form, checked; a model, dataset or reward that the project lacks is an error of its field.

    Raises ConfigError when the text is no config; its problems carry the paths.
    """
    config = config_from_text(text, source="the text")
    choices, whole = Choices.read(project, kind=config.kind), config.to_dict()
    form = RunForm(project, choices, {**EXTRA_FIELDS, **texts_of(whole, config.kind), "kind": config.kind})
    missing = form.fill_suites(whole.get("eval", {}).get("suites", ()))
    rows = {name: next(pks, "") for name, pks in _matches(choices, config).items()}
    more = _more(choices, config)
    preset = whole.get("preset") or ""
    form.texts |= {"name": config.name, "preset": preset, "preset_before": preset, **rows}
    form.texts["more"] = "\n".join(pk for pk in more.values() if pk)
    form.check()
    form.general += [f"{problem}." for problem in missing]
    for name, words in _absent(config).items():
        if not rows[name] and form.has(name):
            form.problems[name] = [f"{words}, or choose another."]
    lacking = [path for path, pk in more.items() if not pk]
    if lacking:
        words = f"data.more: no dataset of this project is {', '.join(lacking)} {_UPLOAD}"
        form.problems["more"] = [f"{words}, or choose another."]
    return form


def _matches(choices: Choices, config: AnyConfig) -> dict[str, Iterator[str]]:
    """By choice, the ids of the rows that are what the config names."""
    model, evaluated = (config.model.path, config.model.revision), config.eval
    versions = [(row.pk, RewardConfig.model_validate(row.spec)) for row in choices.verifier_versions.every.iterator()]
    further = _further(config)
    return {
        "base_model": (str(row.pk) for row in choices.base_models.every if (row.path, row.revision or None) == model),
        "dataset": _with_part(choices.datasets.every, config.data),
        "eval_dataset": _with_part(choices.problems.every, evaluated),
        "verifier_version": (str(pk) for pk, spec in versions if spec == reward_of(config)),
        "eval_verifier_version": (str(pk) for pk, spec in versions if spec == evaluated.reward),
        **{name: _with_path(choices.datasets.every, path) for name, path in further.items()},
    }


def _further(config: AnyConfig) -> dict[str, str | None]:
    data = config.data
    return {"heldout": getattr(data, "heldout_path", None), "replay": getattr(data, "replay_path", None)}


def _more(choices: Choices, config: AnyConfig) -> dict[str, str]:
    """Path of each further file → the id of its dataset; empty where the project has none."""
    paths = config.data.more if isinstance(config, SftConfig) else ()
    return {path: next(_with_path(choices.datasets.every, path), "") for path in paths}


def _with_path(rows: Iterable[PromptDataset], path: str | None) -> Iterator[str]:
    return (str(row.pk) for row in rows if path is not None and input_path(row) == path)


def _with_part(rows: Iterable[PromptDataset], part: Any) -> Iterator[str]:
    """Datasets of which a config says just what this `data` or `eval` does."""
    named = {
        name: value for name, value in part.model_dump(mode="json").items() if name in ("path", "format", "columns")
    }
    if "columns" in named:
        named["columns"] = part.columns.model_dump(exclude_none=True)
    return (str(row.pk) for row in rows if part.hub is None and data_part(row) == named)


def _absent(config: AnyConfig) -> dict[str, str]:
    """What is named of each choice for which the project has no row, where the config names one."""
    model, reward, evaluated = config.model, reward_of(config), config.eval
    revision = f" at revision {model.revision}" if model.revision else ""
    words = {
        "base_model": f"model.path: no base model of this project has the path {model.path}{revision}. Register it "
        "under Base models",
        "dataset": f"data.path: no dataset of this project is {config.data.path} {_UPLOAD}",
    }
    if evaluated.path is not None:
        words["eval_dataset"] = f"eval.path: no dataset of this project is {evaluated.path} {_UPLOAD}"
    if reward is not None:
        names = ", ".join(component.name for component in reward.components)
        words["verifier_version"] = (
            f"reward: no reward of this project is the same as the text's ({names}). Make it under Rewards"
        )
    if evaluated.reward is not None:
        words["eval_verifier_version"] = (
            "eval.reward: no reward of this project is the same as the text's. Make it under Rewards"
        )
    for name, path in _further(config).items():
        if path is not None:
            words[name] = f"data.{name}_path: no dataset of this project is {path} {_UPLOAD}"
    return words
