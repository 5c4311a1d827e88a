"""Reads of the catalog. Every one starts from a project or a version, so that no other project's rows are read."""

from collections.abc import Iterable
from typing import Any, TypeVar

from django.db.models import Count, Prefetch, Q, QuerySet
from django.shortcuts import get_object_or_404

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, EvalSuite, EvalSuiteVersion, PromptDataset, Verifier, VerifierVersion
from cohort.lab.models import LaunchProbe, VerifierProbe
from cohort.runs.models import Attempt, Run
from grpo_core.evaluate.suites.load import Starter, starters

RUNS_SHOWN = 50
PROBES_SHOWN = 25
LAUNCHES_SHOWN = 10
Version = TypeVar("Version", VerifierVersion, EvalSuiteVersion)


def base_models(project: Project) -> QuerySet[BaseModel]:
    return BaseModel.objects.filter(project=project).annotate(run_count=Count("runs"))


def read_by_run(model: BaseModel) -> dict[str, Any] | None:
    """What the worker of a run read at the pinned commit of a Hub repository, from the first manifest that names
    exactly this one; `weights` are {file name: sha256}. A worker wrote it: values of a wrong type are left out."""
    if not model.revision:
        return None
    attempts = Attempt.objects.select_related("run").filter(
        run__base_model=model, manifest__model__source=model.path, manifest__model__revision=model.revision
    )
    attempt = attempts.order_by("pk").first()
    if attempt is None or attempt.manifest is None:
        return None
    facts = attempt.manifest["model"]
    parameters, weights = facts.get("parameters"), facts.get("weights")
    return {
        "run": attempt.run,
        "architecture": str(facts.get("architecture") or ""),
        "parameters": parameters if type(parameters) is int else None,
        "weights": {name: str(sha256) for name, sha256 in weights.items()} if isinstance(weights, dict) else {},
    }


def datasets(project: Project) -> QuerySet[PromptDataset]:
    return PromptDataset.objects.filter(project=project).annotate(
        run_count=Count("training_runs", distinct=True), eval_count=Count("evaluated_runs", distinct=True)
    )


def verifiers(project: Project) -> QuerySet[Verifier]:
    """With `newest` (its spec's components) through the prefetched versions, newest first."""
    versions = Prefetch("versions", VerifierVersion.objects.order_by("-number"))
    rows = Verifier.objects.filter(project=project).prefetch_related(versions)
    return rows.annotate(run_count=Count("versions__runs", distinct=True))


def verifier(project: Project, pk: int) -> Verifier:
    return get_object_or_404(Verifier, project=project, pk=pk)


def versions(parent: Verifier) -> list[VerifierVersion]:
    """Newest first, each with how many runs used it."""
    return list(parent.versions.select_related("created_by").annotate(run_count=Count("runs")).order_by("-number"))


def version_numbered(versions: list[Version], number: str | None) -> Version:
    """The one with this number; else the first, which is the newest."""
    return next((version for version in versions if str(version.number) == number), versions[0])


def suites(project: Project) -> QuerySet[EvalSuite]:
    """With the versions prefetched, newest first."""
    versions = Prefetch("versions", EvalSuiteVersion.objects.order_by("-number"))
    rows = EvalSuite.objects.filter(project=project).prefetch_related(versions)
    return rows.annotate(run_count=Count("versions__runs", distinct=True))


def suite(project: Project, pk: int) -> EvalSuite:
    return get_object_or_404(EvalSuite, project=project, pk=pk)


def suite_versions(parent: EvalSuite) -> list[EvalSuiteVersion]:
    """Newest first, each with how many runs used it."""
    rows = parent.versions.select_related("created_by", "suite").annotate(run_count=Count("runs"))
    return list(rows.order_by("-number"))


def starters_missing(project: Project) -> list[Starter]:
    """Starter suites that the project has not added, or has in another version."""
    present = set(EvalSuiteVersion.objects.filter(suite__project=project).values_list("builtin", "sha256"))
    return [starter for starter in starters() if (starter.name, starter.sha256) not in present]


def runs_with(*either: Q, **used: Any) -> dict[str, Any]:
    """Runs that a condition or `used` holds for, as for a filter of Django: the newest, and how many in all."""
    runs = Run.objects.filter(*either, **used).order_by("-id")
    return {"runs": list(runs[:RUNS_SHOWN]), "total": runs.count()}


def probes_of(version: VerifierVersion) -> list[VerifierProbe]:
    """Newest first."""
    rows = VerifierProbe.objects.filter(version=version).select_related("dataset", "by", "version__verifier")
    return list(rows.order_by("-id")[:PROBES_SHOWN])


def newest_probes(versions: Iterable[VerifierVersion]) -> dict[int, VerifierProbe]:
    """By the version's id; a version that was never probed is not there."""
    rows = VerifierProbe.objects.filter(version__in=[version.pk for version in versions]).defer("report")
    return {row.version_id: row for row in rows.order_by("version_id", "-id").distinct("version_id")}


def launches_of(version: VerifierVersion) -> list[LaunchProbe]:
    """Launches of runs with this version although it was blocked, newest first."""
    rows = LaunchProbe.objects.filter(run__verifier_version=version, overridden=True)
    return list(rows.select_related("run", "by").order_by("-id")[:LAUNCHES_SHOWN])
