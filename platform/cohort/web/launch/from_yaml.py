"""Fill the form from a RunConfig in YAML or JSON: the project's rows are looked up by the values in the text."""

from collections.abc import Iterator

from cohort.accounts.models import Project
from cohort.catalog.models import PromptDataset
from cohort.catalog.run_inputs import input_path
from cohort.web.launch.run_form import EXTRA_FIELDS, Choices, Row, RunForm
from cohort.web.launch.schema import texts_of
from grpo_core.config.evaluation import EvalConfig
from grpo_core.config.run import DataConfig, RewardConfig, RunConfig

_UPLOAD = "(inputs/<sha256>.jsonl). Upload it under Datasets"


def form_from_yaml(project: Project, text: str) -> RunForm:
    """A filled form, checked; a model, dataset or reward that the project lacks is an error of its field.

    Raises ConfigError when the text is no RunConfig; its problems carry the paths.
    """
    config = RunConfig.from_text(text, source="the text")
    choices = Choices.of(project)
    whole = config.to_dict()
    form = RunForm(project, choices, {**EXTRA_FIELDS, **texts_of(whole)})
    missing = form.fill_suites(whole["eval"]["suites"])
    model, reward = (config.model.path, config.model.revision), config.reward
    matches = {
        "base_model": _first(row for row in choices.base_models if (row.path, row.revision or None) == model),
        "dataset": _first(row for row in choices.datasets if _is_file(row, config.data)),
        "eval_dataset": _first(row for row in choices.datasets if _is_file(row, config.eval)),
        "verifier_version": _first(
            row for row in choices.verifier_versions if RewardConfig.model_validate(row.spec) == reward
        ),
    }
    rows = {name: str(row.pk) if row else "" for name, row in matches.items()}
    form.texts |= {"name": config.name, "preset": config.preset or "", **rows}
    form.check()
    form.general += [f"{problem}." for problem in missing]
    at = f" at revision {config.model.revision}" if config.model.revision else ""
    names = ", ".join(component.name for component in reward.components)
    absent = {
        "base_model": f"model.path: no base model of this project has the path {config.model.path}{at}. "
        "Register it under Base models",
        "dataset": f"data.path: no dataset of this project is {config.data.path} {_UPLOAD}",
        "eval_dataset": f"eval.path: no dataset of this project is {config.eval.path} {_UPLOAD}",
        "verifier_version": f"reward: no reward of this project is the same as the text's ({names}). "
        "Make it under Rewards",
    }
    for name, words in absent.items():
        if matches[name] is None and (name != "eval_dataset" or config.eval.path is not None):
            form.problems[name] = [f"{words}, or choose another."]
    return form


def _first(rows: Iterator[Row]) -> Row | None:
    return next(rows, None)


def _is_file(row: PromptDataset, part: DataConfig | EvalConfig) -> bool:
    return input_path(row) == part.path and row.format == part.format
