"""Reads of the catalog. Every one starts from a project or a version, so that no other project's rows are read."""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from django.db.models import Count, Model, Q, QuerySet
from django.shortcuts import get_object_or_404

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.catalog.models import BaseModel, EvalSuite, EvalSuiteVersion, PromptDataset, Verifier, VerifierVersion
from cohort.lab.models import LaunchProbe, VerifierProbe
from cohort.runs.models import Attempt, Run
from grpo_core.evaluate.suites.load import Starter, starters

RUNS_SHOWN = 50
PROBES_SHOWN = 25
LAUNCHES_SHOWN = 10
VERSIONS_OFFERED = 200
OFFERED = 200
Row = TypeVar("Row", bound=Model)
Version = TypeVar("Version", VerifierVersion, EvalSuiteVersion)


class Offered(Generic[Row]):
    """Rows of the catalog to choose from in a form, newest first: all of them, or the newest OFFERED of those whose
    name holds `find`; of all where none does."""

    def __init__(self, rows: QuerySet[Row], find: str = "", *, name: str = "name") -> None:
        """`name`: lookup of the name that is searched."""
        self.every: QuerySet[Row] = rows.order_by("-id")
        """Also those left out."""
        newest = list(self.every[: OFFERED + 1])
        self.more = len(newest) > OFFERED
        """Whether some are left out."""
        wanted = storable(find.strip()) if self.more else ""
        matching = list(self.every.filter(**{f"{name}__icontains": wanted})[:OFFERED]) if wanted else []
        self.rows: list[Row] = matching or newest[:OFFERED]

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def newest(self) -> str:
        """Id of the first; empty without one."""
        return str(self.rows[0].pk) if self.rows else ""

    def row(self, pk: str) -> Row | None:
        """Also one that is left out. None for an id that is not among the rows."""
        offered = next((row for row in self.rows if str(row.pk) == pk), None)
        return self.every.filter(pk=natural(pk) or 0).first() if offered is None and self.more else offered

    def rows_with(self, chosen: Row | None) -> list[Row]:
        """Those offered, and the chosen one, which may have been left out."""
        return self.rows if chosen is None or chosen in self.rows else [chosen, *self.rows]


def base_models(project: Project, *, archived: bool = False) -> QuerySet[BaseModel]:
    rows = BaseModel.objects.filter(project=project, archived_at__isnull=not archived)
    return rows.annotate(run_count=Count("runs")).order_by("name")


def base_models_offered(project: Project) -> QuerySet[BaseModel]:
    """To choose from."""
    return BaseModel.objects.filter(project=project, archived_at=None)


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
    counts = {"run_count": Count("training_runs", distinct=True), "eval_count": Count("evaluated_runs", distinct=True)}
    return PromptDataset.objects.filter(project=project).annotate(**counts).order_by("name")


def verifiers(project: Project) -> QuerySet[Verifier]:
    rows = Verifier.objects.filter(project=project)
    return rows.annotate(run_count=Count("versions__runs", distinct=True)).order_by("name")


def with_newest(verifiers: Iterable[Verifier]) -> list[tuple[Verifier, VerifierVersion, VerifierProbe | None]]:
    """Each with its newest version and that version's newest probe."""
    rows = VerifierVersion.objects.filter(verifier__in=[verifier.pk for verifier in verifiers])
    newest = {row.verifier_id: row for row in rows.order_by("verifier_id", "-number").distinct("verifier_id")}
    probed = newest_probes(newest.values())
    return [(verifier, newest[verifier.pk], probed.get(newest[verifier.pk].pk)) for verifier in verifiers]


def verifier(project: Project, pk: int) -> Verifier:
    return get_object_or_404(Verifier, project=project, pk=pk)


def versions(parent: Verifier) -> QuerySet[VerifierVersion]:
    """Newest first, each with how many runs used it."""
    rows = parent.versions.select_related("created_by", "verifier")
    return rows.annotate(run_count=Count("runs")).order_by("-number")


def version_numbered(versions: QuerySet[Version], number: str | None) -> Version:
    """The one with this number; else the first, which is the newest."""
    return versions.filter(number=natural(number) or 0).first() or versions[0]


def offered(versions: QuerySet[VerifierVersion], *chosen: VerifierVersion) -> list[VerifierVersion]:
    """To choose from: the newest ones, and those that are chosen."""
    by_number = {version.number: version for version in [*versions[:VERSIONS_OFFERED], *chosen]}
    return [by_number[number] for number in sorted(by_number, reverse=True)]


def suites(project: Project) -> QuerySet[EvalSuite]:
    rows = EvalSuite.objects.filter(project=project)
    return rows.annotate(run_count=Count("versions__runs", distinct=True)).order_by("name")


def newest_suite_versions(suites: Iterable[EvalSuite]) -> list[tuple[EvalSuite, EvalSuiteVersion]]:
    """Each with its newest version."""
    rows = EvalSuiteVersion.objects.filter(suite__in=[suite.pk for suite in suites])
    newest = {row.suite_id: row for row in rows.order_by("suite_id", "-number").distinct("suite_id")}
    return [(suite, newest[suite.pk]) for suite in suites]


def own_suites(project: Project) -> list[EvalSuiteVersion]:
    """Newest versions of suites that people made; a starter suite stays as it comes."""
    return [version for _, version in newest_suite_versions(suites(project)) if not version.builtin]


def suite(project: Project, pk: int) -> EvalSuite:
    return get_object_or_404(EvalSuite, project=project, pk=pk)


def suite_versions(parent: EvalSuite) -> QuerySet[EvalSuiteVersion]:
    """Newest first, each with how many runs used it."""
    rows = parent.versions.select_related("created_by", "suite").annotate(run_count=Count("runs"))
    return rows.order_by("-number")


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
