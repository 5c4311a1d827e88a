"""Reference answers that a run's reward cannot read, known before it is in the queue."""

from itertools import islice

from django.core.cache import cache

from cohort.catalog.models import PromptDataset
from cohort.catalog.run_inputs import dataset_problems
from grpo_core.config.kinds import AnyConfig, ScoredConfig, judge_of, reward_of
from grpo_core.errors import DataError
from grpo_core.rewards import Rubric

REFERENCES = 1000
"""Problems of a dataset whose references are looked at."""


def unreadable_references(
    config: AnyConfig, dataset: PromptDataset | None, eval_dataset: PromptDataset | None
) -> tuple[str, ...]:
    """References of the problems that the run's reward cannot read, with row and reason. Looks at the first
    `REFERENCES` problems of a dataset, and only with rewards that are rules in time linear in the text; the trainer
    looks at all, whatever the reward."""
    if isinstance(config, ScoredConfig) and config.data.unreadable == "drop":
        return ()
    files = (
        (dataset, reward_of(config), config.data.limit),
        (eval_dataset, judge_of(config), config.eval.limit),
    )
    faults = [
        _reference_fault(rubric, dataset, min(limit or REFERENCES, REFERENCES))
        for dataset, reward, limit in files
        if dataset is not None and reward is not None and (rubric := Rubric(reward)).rules_alone
    ]
    return tuple(fault for fault in faults if fault)


def _reference_fault(rubric: Rubric, dataset: PromptDataset, limit: int) -> str:
    """Kept for a while, because the form checks itself at every change."""

    def fault() -> str:
        try:
            rubric.check_problems(list(islice(dataset_problems(dataset), limit)))
        except DataError as error:
            return f"{dataset.name}: {error}"
        return ""

    try:
        return str(cache.get_or_set(f"references/{dataset.pk}/{limit}/{rubric.digest}", fault))
    except FileNotFoundError:  # not kept: it may be there again
        return f"{dataset.name}: its file is gone from the artifacts; upload it again"
