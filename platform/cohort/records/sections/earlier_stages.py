"""Every earlier run that a run depends on, however its work came to it: as the weights that it began from, as a dataset
that was sampled, or as a reward model that scored. Read once when the record is made. Writes nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import Q

from cohort.catalog.models import BaseModel, PromptDataset
from cohort.evidence.canonical import dig
from cohort.records.models import Audience, Record
from cohort.records.sections.history_facts import DEEPEST, origin_of
from cohort.runs.base_models import weight_files
from cohort.runs.models import Checkpoint, DatasetRole, Run, RunKind

Gave = Literal["weights", "dataset", "reward_model"]
GAVE_WORDS: dict[Gave, str] = {"weights": "its weights", "dataset": "its dataset", "reward_model": "a reward model"}


@dataclass(frozen=True)
class EarlierStage:
    """One run that gave something to a later one."""

    run: Run
    gave: Gave
    to: Run
    digests: dict[str, str]
    """{file: SHA-256} of what passed."""
    seal: str
    """Of its newest record; empty while it has none."""
    card: str
    """SHA-256 of that record's public card; empty without one."""

    def as_value(self) -> dict[str, Any]:
        """As a record's lineage has it."""
        return {
            "run": self.run.pk,
            "name": self.run.name,
            "kind": self.run.kind,
            "gave": self.gave,
            "to": self.to.pk,
            "digests": self.digests,
            "seal": self.seal or None,
            "card": self.card or None,
        }


def earlier_stages(run: Run, manifest: Mapping[str, Any] | None) -> list[EarlierStage]:
    """Nearest first, each edge once; at most `DEEPEST` runs are followed. `manifest`: as the run's trainer reported
    it."""
    stages: list[EarlierStage] = []
    waiting, followed = [(run, manifest)], {run.pk}
    while waiting and len(followed) <= DEEPEST:
        here, reported = waiting.pop(0)
        for stage in _inputs_of(here, reported, followed):
            stages.append(stage)
            if stage.run.pk not in followed:
                followed.add(stage.run.pk)
                waiting.append((stage.run, stage.run.newest_manifest()))
    return stages


def record_of(run: Run) -> tuple[str, str]:
    """(seal of its newest record, SHA-256 of that record's newest public card); each empty where there is none."""
    record = Record.objects.filter(run=run).order_by("-end", "-version").first()
    if record is None:
        return "", ""
    card = record.cards.filter(audience=Audience.PUBLIC).order_by("-issue").first()
    return record.seal, card.sha256 if card is not None else ""


def _inputs_of(run: Run, manifest: Mapping[str, Any] | None, followed: set[int]) -> Iterator[EarlierStage]:
    if (checkpoint := origin_of(run, manifest, followed)) is not None:
        yield _stage(checkpoint.run, "weights", run, weights_of(checkpoint))
    for dataset in sampled_datasets(run):
        if dataset.sampled_by is not None:
            yield _stage(dataset.sampled_by, "dataset", run, {"rows.jsonl": dataset.sha256})
    for component, checkpoint in reward_checkpoints(run):
        digests = weights_of(checkpoint)
        if isinstance(read := dig(manifest, "reward", component, "weights_sha256"), str):
            digests["as the trainer read them"] = read
        yield _stage(checkpoint.run, "reward_model", run, digests)


def _stage(earlier: Run, gave: Gave, to: Run, digests: dict[str, str]) -> EarlierStage:
    return EarlierStage(earlier, gave, to, digests, *record_of(earlier))


def weights_of(checkpoint: Checkpoint) -> dict[str, str]:
    """{file: SHA-256} of a checkpoint's weights."""
    files = checkpoint.files
    return {name: files[name]["sha256"] for name in weight_files(checkpoint) if name in files}


def sampled_datasets(run: Run) -> list[PromptDataset]:
    """The datasets that the run learned from and another run sampled: its own, and the further ones."""
    learned = run.run_datasets.exclude(role=DatasetRole.HELDOUT).values("dataset")
    rows = PromptDataset.objects.filter(Q(pk=run.dataset_id) | Q(pk__in=learned)).exclude(sampled_by=None)
    return list(rows.exclude(sampled_by=run).select_related("sampled_by").order_by("pk"))


def reward_checkpoints(run: Run) -> list[tuple[str, Checkpoint]]:
    """(component of the reward, checkpoint that it scores with), of reward models that a run of the project trained."""
    parts = (run.config.get("reward") or {}).get("components") or ()
    components = {
        str(part["params"]["path"]): str(part["name"])
        for part in parts
        if part.get("kind") == "reward_model" and "path" in (part.get("params") or {})
    }
    models = BaseModel.objects.filter(
        project=run.project, path__in=components, checkpoint__run__kind=RunKind.REWARD_MODEL
    ).select_related("checkpoint__run")
    return [(components[model.path], model.checkpoint) for model in models.order_by("pk") if model.checkpoint]
