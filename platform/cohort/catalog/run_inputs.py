"""The files that a run reads, and its suites: from a chosen version to its part of the config."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.base import artifacts
from cohort.catalog.learned_files import learned_rows
from cohort.catalog.models import DatasetContent, EvalSuiteVersion, PromptDataset
from grpo_core.config import builtin_suites
from grpo_core.data.loaders import scan_problems
from grpo_core.data.problem import Problem
from grpo_core.files.dataset import FACTS, ROWS
from grpo_core.specs.fields import DataColumns

OWN = ("margin", "limit", "max_completion_tokens", "template")
"""Settings of a suite that a run decides; all others are the version's."""


@dataclass(frozen=True)
class ChosenSuite:
    """A version with the settings that the run decides. Empty values fall back to the run's `eval` and `data`. They
    are of any type, as typed: RunConfig reports what is wrong with them."""

    version: EvalSuiteVersion
    margin: Any = None
    limit: Any = None
    max_completion_tokens: Any = None
    template: Any = None


def dataset_problems(dataset: PromptDataset) -> Iterator[Problem]:
    """The problems of its stored file. Raises DataError, and FileNotFoundError where the file is gone."""
    with artifacts.open_read(dataset.artifact) as handle:
        yield from scan_problems(
            handle, dataset.format, columns=DataColumns.model_validate(dataset.mapping), source=dataset.name
        )


def dataset_texts(dataset: PromptDataset) -> Iterator[tuple[str, str]]:
    """(id, text) of every row of its stored file: a problem's prompt, all of a conversation or a preference. Raises as
    `dataset_problems`."""
    if dataset.content == DatasetContent.PROBLEMS:
        yield from ((problem.id, problem.text) for problem in dataset_problems(dataset))
        return
    with artifacts.open_read(dataset.artifact) as handle:
        yield from ((row.id, row.text) for row in learned_rows(handle, dataset.content, source=dataset.name))


def data_part(dataset: PromptDataset) -> dict[str, Any]:
    """What a config's `data` or `eval` says of the dataset's file. Only problems have a layout to choose."""
    if dataset.content != DatasetContent.PROBLEMS:
        return {"path": input_path(dataset)}
    return {"path": input_path(dataset), "format": dataset.format, "columns": dataset.mapping}


def input_path(dataset: PromptDataset) -> str:
    """Where the worker puts the dataset's file, relative to the run directory. Sampled conversations have a folder, for
    what they came from lies next to them."""
    return f"inputs/{dataset.sha256}/{ROWS}" if is_sampled(dataset) else f"inputs/{dataset.sha256}.jsonl"


def about_path(dataset: PromptDataset) -> str:
    """Where the worker puts what a sampled dataset came from."""
    return f"inputs/{dataset.sha256}/{FACTS}"


def is_sampled(dataset: PromptDataset) -> bool:
    """Whether it holds conversations that a run of kind `sample` wrote."""
    return dataset.sampled_by_id is not None and dataset.content == DatasetContent.CONVERSATIONS


def input_rows(
    config: Mapping[str, Any], datasets: Iterable[PromptDataset | None], versions: Iterable[EvalSuiteVersion]
) -> dict[str, PromptDataset | EvalSuiteVersion]:
    """The datasets and suites that a run of this config reads, by the path that the config expects each at. Starter
    suites that the worker has itself, in the version that it shares with the platform, need no file."""
    rows: dict[str, PromptDataset | EvalSuiteVersion] = {
        input_path(dataset): dataset for dataset in datasets if dataset is not None
    }
    named = {suite["path"] for suite in config.get("eval", {}).get("suites", ())}
    for version in versions:
        if (path := f"inputs/{version.sha256}.jsonl") in named:
            rows.setdefault(path, version)
    return rows


def suite_path(version: EvalSuiteVersion) -> str:
    """What the config calls the items' file: a starter suite by its name as long as this Cohort has the same bytes,
    any other as the file that the worker puts into the run directory."""
    name = version.builtin
    if name in builtin_suites.names() and builtin_suites.definition(name)["sha256"] == version.sha256:
        return builtin_suites.PREFIX + name
    return f"inputs/{version.sha256}.jsonl"


def suite_part(chosen: ChosenSuite) -> dict[str, Any]:
    """The suite as an entry of `eval.suites`."""
    version = chosen.version
    return {
        "name": version.suite.name,
        "title": version.title,
        "version": version.number,
        "path": suite_path(version),
        "sha256": version.sha256,
        "category": version.category,
        "scorer": version.scorer,
        "higher_is": version.higher_is,
        "sensitive": version.sensitive,
        **{name: getattr(chosen, name) for name in OWN},
    }
