"""Reads of the lab's pages. Every one starts from a project or a version, so that no other project's rows are read."""

from collections.abc import Iterable
from typing import Any

from django.shortcuts import get_object_or_404

from cohort.accounts.models import Project
from cohort.catalog.models import VerifierVersion
from cohort.lab.models import LabJob, LaunchProbe, VerifierProbe

JOBS_SHOWN = 25
PROBES_SHOWN = 25
LAUNCHES_SHOWN = 10
_SHOWN = ("version__verifier", "dataset", "base_model", "created_by", "node", "probe")


def jobs_of(project: Project, version: VerifierVersion | None = None) -> dict[str, Any]:
    """The newest jobs, and how many there are in all."""
    rows = LabJob.objects.filter(project=project)
    if version is not None:
        rows = rows.filter(version=version)
    light = rows.defer("result", "options", "log_tail").select_related(*_SHOWN)
    return {"rows": list(light.order_by("-id")[:JOBS_SHOWN]), "total": rows.count()}


def job_of(project: Project, pk: int, *, light: bool = False) -> LabJob:
    """`light`: without its result, for what is polled."""
    jobs = LabJob.objects.select_related("project", *_SHOWN)
    return get_object_or_404(jobs.defer("result", "options") if light else jobs, project=project, pk=pk)


def probes_of(version: VerifierVersion) -> list[VerifierProbe]:
    """Newest first."""
    rows = VerifierProbe.objects.filter(version=version).select_related("dataset", "by", "version__verifier")
    return list(rows.order_by("-id")[:PROBES_SHOWN])


def newest_probes(versions: Iterable[VerifierVersion]) -> dict[int, VerifierProbe]:
    """By the version's id; a version that was never probed is not there."""
    rows = (
        VerifierProbe.objects.filter(version__in=[version.pk for version in versions])
        .order_by("version_id", "-id")
        .distinct("version_id")
        .defer("report")
    )
    return {row.version_id: row for row in rows}


def launches_of(version: VerifierVersion) -> list[LaunchProbe]:
    """Launches of runs with this version although it was blocked, newest first."""
    rows = LaunchProbe.objects.filter(run__verifier_version=version, overridden=True)
    return list(rows.select_related("run", "by").order_by("-id")[:LAUNCHES_SHOWN])


def versions_to_choose(project: Project) -> list[VerifierVersion]:
    rows = VerifierVersion.objects.filter(verifier__project=project).select_related("verifier")
    return list(rows.order_by("verifier__name", "-number"))


def version_of(project: Project, pk: int) -> VerifierVersion:
    return get_object_or_404(VerifierVersion.objects.select_related("verifier"), verifier__project=project, pk=pk)
