"""Reads of the catalog. Every one starts from a project, so that no row of another can come along."""

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Count, Model, Prefetch, Q, QuerySet
from django.http import Http404

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, EvalSuite, EvalSuiteVersion, PromptDataset, Verifier, VerifierVersion
from cohort.runs.models import Attempt, Run
from grpo_core.evaluate.suites import Starter, starters
from grpo_core.rewards import KINDS

RUNS_SHOWN = 50
Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class UsedBy:
    """Runs that used something: the newest, and how many there are in all."""

    runs: list[Run]
    total: int


def base_models(project: Project) -> QuerySet[BaseModel]:
    return BaseModel.objects.filter(project=project).annotate(run_count=Count("runs"))


def base_model(project: Project, pk: int) -> BaseModel:
    return _get_or_404(BaseModel.objects.filter(project=project).select_related("created_by"), pk)


@dataclass(frozen=True)
class ReadByRun:
    """What the worker of a run found at the pinned commit of a Hub repository."""

    run: Run
    architecture: str
    parameters: int | None
    weights: dict[str, str]
    """{file name: sha256}"""


def read_by_run(model: BaseModel) -> ReadByRun | None:
    """From the first manifest that names exactly this repository and commit. A worker wrote it, so any value may be of
    a wrong type; such a one is left out."""
    if not model.revision:
        return None
    attempt = (
        Attempt.objects.filter(
            run__base_model=model, manifest__model__source=model.path, manifest__model__revision=model.revision
        )
        .select_related("run")
        .order_by("pk")
        .first()
    )
    if attempt is None or attempt.manifest is None:
        return None
    facts = attempt.manifest["model"]
    parameters, weights = facts.get("parameters"), facts.get("weights")
    return ReadByRun(
        run=attempt.run,
        architecture=str(facts.get("architecture") or ""),
        parameters=parameters if type(parameters) is int else None,
        weights={name: str(sha256) for name, sha256 in weights.items()} if isinstance(weights, dict) else {},
    )


def datasets(project: Project) -> QuerySet[PromptDataset]:
    return PromptDataset.objects.filter(project=project).annotate(
        run_count=Count("training_runs", distinct=True), eval_count=Count("evaluated_runs", distinct=True)
    )


def dataset(project: Project, pk: int) -> PromptDataset:
    return _get_or_404(PromptDataset.objects.filter(project=project).select_related("created_by"), pk)


def verifiers(project: Project) -> QuerySet[Verifier]:
    """With `newest` (its spec's components) through the prefetched versions, newest first."""
    return (
        Verifier.objects.filter(project=project)
        .prefetch_related(Prefetch("versions", VerifierVersion.objects.order_by("-number")))
        .annotate(run_count=Count("versions__runs", distinct=True))
    )


def verifier(project: Project, pk: int) -> Verifier:
    return _get_or_404(Verifier.objects.filter(project=project), pk)


def versions(of: Verifier) -> list[VerifierVersion]:
    """Newest first, each with how many runs used it."""
    return list(of.versions.select_related("created_by").annotate(run_count=Count("runs")).order_by("-number"))


@dataclass(frozen=True)
class Parameter:
    name: str
    default: str
    help: str


def reward_kinds() -> dict[str, list[Parameter]]:
    """Each kind's parameters, as the kind itself declares them."""
    return {
        name: [
            Parameter(parameter, json.dumps(field.default), field.description or "")
            for parameter, field in kind.params.model_fields.items()
        ]
        for name, kind in KINDS.items()
    }


def suites(project: Project) -> QuerySet[EvalSuite]:
    """With the versions prefetched, newest first."""
    return (
        EvalSuite.objects.filter(project=project)
        .prefetch_related(Prefetch("versions", EvalSuiteVersion.objects.order_by("-number")))
        .annotate(run_count=Count("versions__runs", distinct=True))
    )


def suite(project: Project, pk: int) -> EvalSuite:
    return _get_or_404(EvalSuite.objects.filter(project=project), pk)


def suite_versions(of: EvalSuite) -> list[EvalSuiteVersion]:
    """Newest first, each with how many runs used it."""
    rows = of.versions.select_related("created_by", "suite").annotate(run_count=Count("runs"))
    return list(rows.order_by("-number"))


def starters_missing(project: Project) -> list[Starter]:
    """Starter suites that the project has not added, or has in another version."""
    present = set(EvalSuiteVersion.objects.filter(suite__project=project).values_list("builtin", "sha256"))
    return [starter for starter in starters() if (starter.name, starter.sha256) not in present]


def runs_with(**used: Any) -> UsedBy:
    runs = Run.objects.filter(**used).order_by("-id")
    return UsedBy(list(runs[:RUNS_SHOWN]), runs.count())


def runs_with_dataset(row: PromptDataset) -> UsedBy:
    runs = Run.objects.filter(Q(dataset=row) | Q(eval_dataset=row), project=row.project).order_by("-id")
    return UsedBy(list(runs[:RUNS_SHOWN]), runs.count())


def _get_or_404(rows: QuerySet[Row], pk: int) -> Row:
    row = rows.filter(pk=pk).first()
    if row is None:
        raise Http404
    return row
