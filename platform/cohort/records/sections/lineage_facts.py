"""Origin of a run's base model, as far as this platform knows: its weights, a cold start, earlier runs that wrote it.
Writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.records.models import Record
from cohort.runs.models import Checkpoint, Run

DEEPEST = 50
"""Runs in a row that are followed back."""


@dataclass(frozen=True)
class Ancestor:
    """An earlier run that trained the weights which the next one began from."""

    run: Run
    step: int
    """After which those weights were written."""
    seal: str
    """Of its newest record; empty while it has none."""


@dataclass(frozen=True)
class Lineage:
    ancestors: list[Ancestor]
    """Newest first."""
    cold_start: dict[str, Any] | None
    """cold_start.json from the model folder of the base that the oldest run began from."""
    weights_known: bool
    """Whether there is a digest of what the run began from; without one no earlier run can be found."""
    followed_to_the_end: bool
    """False when there were more than `DEEPEST`."""


def lineage(run: Run, manifest: Mapping[str, Any] | None) -> Lineage:
    """`manifest`: as the run's trainer reported it; None uses the catalog's data on the base model."""
    ancestors: list[Ancestor] = []
    known = {run.pk}
    here, weights, cold_start = run, _weights(run, manifest), _provenance(run, manifest)
    known_by = bool(weights)
    while len(ancestors) < DEEPEST:
        checkpoint = _made(here, weights, known)
        if checkpoint is None:
            return Lineage(ancestors, cold_start, known_by, followed_to_the_end=True)
        known.add(checkpoint.run_id)
        here = checkpoint.run
        newest = Record.objects.filter(run=here).order_by("-end", "-version").first()
        ancestors.append(Ancestor(here, checkpoint.step, newest.seal if newest else ""))
        attempt = here.attempts.exclude(manifest=None).order_by("-fence").first()
        manifest = None if attempt is None else attempt.manifest
        weights, cold_start = _weights(here, manifest), _provenance(here, manifest)
    return Lineage(ancestors, cold_start, known_by, followed_to_the_end=False)


def _weights(run: Run, manifest: Mapping[str, Any] | None) -> dict[str, str]:
    """{file: sha256} of what the run began from."""
    if manifest is not None:
        return dict(manifest["model"]["weights"])
    return {name: entry["sha256"] for name, entry in run.base_model.weights.items()}


def _provenance(run: Run, manifest: Mapping[str, Any] | None) -> dict[str, Any] | None:
    provenance = manifest["model"].get("provenance") if manifest is not None else None
    return provenance or run.base_model.provenance


def _made(run: Run, weights: dict[str, str], known: set[int]) -> Checkpoint | None:
    """The weights that a run of the same project wrote and that this one began from: every file by its SHA-256.
    Runs in `known` are skipped: a run that learned nothing writes the weights it began from, and a node's clock may
    be behind."""
    if not weights:
        return None
    files = {name: {"sha256": digest} for name, digest in weights.items()}
    rows = Checkpoint.objects.filter(run__project=run.project, files__contains=files, at__lt=run.created_at)
    rows = rows.exclude(run__in=known).select_related("run__base_model", "run__project")
    return rows.order_by("-at", "-pk").first()
