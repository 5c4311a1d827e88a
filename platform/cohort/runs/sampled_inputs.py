"""What lies next to a sampled dataset that a run learns from: dataset.json, by which the trainer names who answered."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import rfc8785

from cohort.catalog.models import PromptDataset
from cohort.catalog.run_inputs import about_path, is_sampled
from cohort.evidence.canonical import dig
from cohort.runs.models import Run

_OF_MODEL = ("source", "revision", "architecture", "parameters", "sha256")


@dataclass(frozen=True)
class SampledAbout:
    """dataset.json of one dataset, made of its run's rows: the same bytes each time."""

    path: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        return len(self.content)


def sampled_abouts(datasets: Iterable[PromptDataset | None]) -> dict[str, SampledAbout]:
    """By the path that the trainer looks for each at, of those that a run sampled."""
    sampled = [dataset for dataset in datasets if dataset is not None and is_sampled(dataset)]
    return {about_path(dataset): SampledAbout(about_path(dataset), _content(dataset)) for dataset in sampled}


def _content(dataset: PromptDataset) -> bytes:
    assert dataset.sampled_by_id is not None, "it is sampled"
    run = Run.objects.select_related("verifier_version").get(pk=dataset.sampled_by_id)
    config, manifest = run.scored_config, run.newest_manifest()
    facts: dict[str, Any] = {
        "format": 1,
        "run": run.name,
        "run_id": run.pk,
        "config_digest": run.config_digest,
        "content": dataset.content,
        "rows": dataset.problems,
        "sha256": dataset.sha256,
        "model": {name: dig(manifest, "model", name) for name in _OF_MODEL},
        "reward_digest": run.verifier_version.digest,
        "sampling": config.sampling.model_dump(mode="json"),
        "seed": config.seed,
    }
    return rfc8785.dumps(facts)
