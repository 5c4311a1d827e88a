"""Fill the form from a RunConfig in YAML or JSON: the project's rows are found by what the text says of them."""

from cohort.accounts.models import Project
from cohort.catalog.run_inputs import input_path
from cohort.web.launch.run_form import BESIDE, Choices, RunForm
from cohort.web.launch.values import texts_of
from grpo_core.config.run import RewardConfig, RunConfig


def form_from_yaml(project: Project, text: str) -> RunForm:
    """A filled form, checked; what names a model, dataset or reward that the project lacks is said beside the field.

    Raises ConfigError when the text is no RunConfig; its problems carry the paths.
    """
    config = RunConfig.from_text(text, source="the text")
    choices = Choices.of(project)
    whole = config.to_dict()
    form = RunForm(project, choices, {**BESIDE, **texts_of(whole)})
    missing = form.fill_suites(whole["eval"]["suites"])
    model = next(
        (
            row
            for row in choices.base_models
            if row.path == config.model.path and (row.revision or None) == config.model.revision
        ),
        None,
    )
    dataset = next(
        (row for row in choices.datasets if input_path(row) == config.data.path and row.format == config.data.format),
        None,
    )
    held_out = next(
        (row for row in choices.datasets if input_path(row) == config.eval.path and row.format == config.eval.format),
        None,
    )
    reward = next(
        (row for row in choices.verifier_versions if RewardConfig.model_validate(row.spec) == config.reward), None
    )
    form.texts |= {
        "name": config.name,
        "preset": config.preset or "",
        "base_model": str(model.pk) if model else "",
        "dataset": str(dataset.pk) if dataset else "",
        "eval_dataset": str(held_out.pk) if held_out else "",
        "verifier_version": str(reward.pk) if reward else "",
    }
    form.check()
    form.general += [f"{problem}." for problem in missing]
    if model is None:
        revision = f" at revision {config.model.revision}" if config.model.revision else ""
        form.problems["base_model"] = [
            f"model.path: no base model of this project has the path {config.model.path}{revision}. "
            "Register it under Base models, or choose another."
        ]
    if dataset is None:
        form.problems["dataset"] = [_no_dataset("data.path", config.data.path)]
    if config.eval.path is not None and held_out is None:
        form.problems["eval_dataset"] = [_no_dataset("eval.path", config.eval.path)]
    if reward is None:
        names = ", ".join(component.name for component in config.reward.components)
        form.problems["verifier_version"] = [
            f"reward: no reward of this project is the same as the text's ({names}). "
            "Make it under Rewards, or choose another."
        ]
    return form


def _no_dataset(path: str, value: str) -> str:
    return (
        f"{path}: no dataset of this project is {value} (inputs/<sha256>.jsonl). "
        "Upload it under Datasets, or choose another."
    )
