"""Evaluations of base models outside of runs: kept item by item as those of runs are, and compared by the same
statistics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from cohort.audit import services as audit
from cohort.catalog.models import BaseModel, EvalSuiteVersion
from cohort.evaluations.selectors import HELDOUT_TITLE, Points, points, tone
from cohort.evidence.compare import Item, compare_all
from cohort.evidence.items import SuiteFacts
from cohort.evidence.protocols import protocol_differences
from cohort.lab.models import LabJob, ModelEvalItem, ModelEvalResult
from grpo_core.config.evaluation import EvalConfig
from grpo_core.lab.evaluation import ModelEvaluation

ITEM_SHOWS = ("all", "right", "wrong", "truncated", "errors")
"""Which items a page may show."""
_AT_ONCE = 2000
"""Rows of one INSERT."""
_ITEM = ("problem_id", "prompt", "answer", "completion", "score", "truncated", "tokens", "detail", "slice", "cluster")
_TOTALS = ("suite", "problems", "correct", "truncated", "errors", "mean_tokens", "seconds", "protocol")


def evaluations_store(*, job: LabJob, evaluation: ModelEvaluation) -> None:
    """Keep what a worker's finish of the job brought; it was checked."""
    assert job.base_model is not None
    assert job.node is not None
    chosen = {(suite["name"], suite["version"]) for suite in job.suites}
    rows = EvalSuiteVersion.objects.filter(suite__project=job.project_id, suite__name__in=[name for name, _ in chosen])
    versions = {row.name: row.pk for row in rows.select_related("suite") if (row.name, row.number) in chosen}
    items: dict[str, list[Any]] = {}
    for item in evaluation.items:
        items.setdefault(item.suite, []).append(item)
    for result in evaluation.results:
        totals = {name: getattr(result, name) for name in _TOTALS}
        row = ModelEvalResult.objects.create(
            job=job, base_model=job.base_model, suite_version_id=versions.get(result.suite), **totals
        )
        answers = (
            ModelEvalItem(
                result=row, index=index, error=item.error or "", **{name: getattr(item, name) for name in _ITEM}
            )
            for index, item in enumerate(items[result.suite])
        )
        ModelEvalItem.objects.bulk_create(answers, batch_size=_AT_ONCE)
    audit.log(
        actor=f"node:{job.node.name}",
        kind="model_evaluated",
        subject=f"base_model:{job.base_model.name}",
        project=job.project,
        after={result.suite: {"correct": result.correct, "items": result.problems} for result in evaluation.results},
        data={"job": job.pk},
    )


def reference_of(model: BaseModel) -> BaseModel | None:
    """The model that this one is compared with first: of a checkpoint, its run's base model."""
    return None if model.checkpoint is None else model.checkpoint.run.base_model


def evaluations_of(model: BaseModel) -> QuerySet[ModelEvalResult]:
    """Newest first."""
    rows = model.evaluations.select_related("job__created_by", "suite_version__suite")
    return rows.order_by("-pk")


def results_of(job: LabJob) -> list[ModelEvalResult]:
    """The held-out problems first, then the suites as they were chosen."""
    return list(job.evaluations.select_related("base_model", "suite_version__suite").order_by("pk"))


@dataclass(frozen=True)
class Other:
    """Another evaluation with a suite in common."""

    job: LabJob
    results: dict[str, ModelEvalResult]
    """By suite."""

    @property
    def model(self) -> BaseModel:
        return next(iter(self.results.values())).base_model


def comparable(job: LabJob, results: Sequence[ModelEvalResult]) -> list[Other]:
    """Evaluations of the project that answered the same items as one of the job's, of this model or others, newest
    first."""
    same = Q()
    for result in results:
        same |= Q(suite=result.suite, protocol__items_digest=result.protocol.get("items_digest"))
    rows = ModelEvalResult.objects.filter(same, job__project=job.project_id).exclude(job=job)
    by_job: dict[int, Other] = {}
    for row in rows.select_related("base_model", "suite_version__suite", "job__created_by").order_by("-job_id", "pk"):
        by_job.setdefault(row.job_id, Other(row.job, {})).results[row.suite] = row
    return list(by_job.values())


def of_reference(model: BaseModel, others: Sequence[Other]) -> Other | None:
    """The newest of the model's reference; None where it has none."""
    reference = reference_of(model)
    return next((other for other in others if reference is not None and other.model.pk == reference.pk), None)


@dataclass(frozen=True)
class Measured:
    """One result as its page shows it."""

    result: ModelEvalResult
    against: ModelEvalResult | None
    compared: dict[str, Any]
    """As `evidence.compare.compare_all` gives it, the other's answers in the place of those before training."""
    reason: str
    """Why the two cannot be compared; empty where they can, and without another."""

    @property
    def title(self) -> str:
        return str(self.compared["title"])

    @property
    def sensitive(self) -> bool:
        return bool(self.compared["sensitive"])

    @property
    def own(self) -> dict[str, Any]:
        """Share, interval, truncated and errors."""
        own: dict[str, Any] = self.compared["after"]
        return own

    @property
    def points(self) -> Points | None:
        return points(self.compared["change"], self.compared["margin"])

    @property
    def tone(self) -> str:
        return tone(self.compared) if self.compared["change"] else ""

    @property
    def good(self) -> bool:
        """Whether a right answer is good: not where a higher score is harm, or neutral."""
        return str(self.compared["higher_is"]) == "better"

    @property
    def slices(self) -> list[tuple[dict[str, Any], Points | None]]:
        return [(part, points(part["change"], self.compared["margin"])) for part in self.compared["slices"]]


def measured(result: ModelEvalResult, against: ModelEvalResult | None = None) -> Measured:
    """With every item, read from the database; paired item by item where both answered under one protocol."""
    reason = "" if against is None else protocol_differences(against.protocol, result.protocol)
    before = None if against is None or reason else _items(against)
    case = (suite_facts(result), before, _items(result), not reason, None)
    (compared,) = compare_all([case], resampled=False)
    if before is not None and compared["change"] is None:
        reason = "not the same items"
    return Measured(result, against, compared, reason)


def suite_facts(result: ModelEvalResult) -> SuiteFacts:
    version = result.suite_version
    return SuiteFacts(
        suite=result.suite,
        title=version.title if version else HELDOUT_TITLE,
        category=version.category if version else "performance",
        higher_is=version.higher_is if version else "better",  # type: ignore[arg-type]  # a suite's is checked
        sensitive=version.sensitive if version else False,
        margin=version.margin if version else EvalConfig().margin,
        protocol=result.protocol,
    )


def _items(result: ModelEvalResult) -> list[Item]:
    rows = result.items.values_list("problem_id", "score", "truncated", "error", "cluster", "slice")
    return [
        Item(problem_id, score, cut, bool(error), cluster, part)
        for problem_id, score, cut, error, cluster, part in rows.order_by("index")
    ]


def shown_items(result: ModelEvalResult, show: str) -> QuerySet[ModelEvalItem]:
    """Of `ITEM_SHOWS`, in order. Right is a whole score; an item that could not be scored is not counted as wrong."""
    items = result.items.order_by("index")
    match show:
        case "right":
            return items.filter(score=1)
        case "wrong":
            return items.filter(score__lt=1, error="")
        case "truncated":
            return items.filter(truncated=True)
        case "errors":
            return items.exclude(error="")
    return items
