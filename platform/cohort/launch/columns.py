"""Whether datasets have the fields that a reward reads of each problem."""

from collections.abc import Iterator

from cohort.catalog.models import PromptDataset
from grpo_core.errors import FieldProblem
from grpo_core.rewards import Rubric


def columns_missing(rubric: Rubric, dataset: PromptDataset, *, field: str) -> Iterator[FieldProblem]:
    """A problem of `field`, the dataset's in the run form, for each field that not every problem has. Of a dataset
    whose fields were never counted nothing is said: the trainer looks at it before the first step."""
    if dataset.columns is None:
        return
    for column, component in sorted(rubric.columns.items()):
        having = dataset.columns.get(column, 0)
        if having < dataset.problems:
            there = ", ".join(["prompt", "answer", *dataset.columns])
            lack = "has no field" if having == 0 else f"lacks, in {dataset.problems - having:,} problems, the field"
            yield FieldProblem(
                field,
                f"{lack} {column!r}, which the reward's component {component!r} reads; it has {there}. Choose another "
                "dataset or reward, or add the field to every line",
            )
