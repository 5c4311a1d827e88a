"""Runs of the kinds other than GRPO that have ended, as `sealed_run` makes those of GRPO: launched, claimed, their
records ingested, finished. What their trainers report is written by hand, so that what a record must say is known.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from cohort.accounts.models import Project, User
from cohort.base import artifacts
from cohort.catalog.models import BaseModel, DatasetContent, PromptDataset, VerifierVersion
from cohort.launch.creation import run_launch
from cohort.records.models import Record
from cohort.runs.base_models import checkpoint_register
from cohort.runs.models import Checkpoint, Run
from grpo_core.config.stage import Kind
from grpo_core.records import types as records
from tests.factories import sealed_run
from tests.factories.runs import UNPROBED

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": f"what is {a} + 7?"}, {"role": "assistant", "content": str(a + 7)}]}
    for a in range(20)
]
PAIRS = [{"prompt": f"what is {a} + 7?", "chosen": str(a + 7), "rejected": str(a)} for a in range(20)]


def dataset_of(
    project: Project, name: str, content: DatasetContent, rows: Sequence[Any], *, sampled_by: Run | None = None
) -> PromptDataset:
    """A stored dataset of these rows."""
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    stored = artifacts.put(f"datasets/{hashlib.sha256(lines).hexdigest()}", [lines])
    return PromptDataset.objects.create(
        project=project,
        name=name,
        content=content,
        format="messages" if content == DatasetContent.CONVERSATIONS else "plain",
        sha256=stored.sha256,
        size=stored.size,
        problems=len(rows),
        sampled_by=sampled_by,
    )


def launch(
    kind: Kind,
    *,
    project: Project,
    actor: User,
    base_model: BaseModel,
    dataset: PromptDataset,
    settings: dict[str, Any],
    heldout: PromptDataset | None = None,
    verifier_version: VerifierVersion | None = None,
    eval_verifier_version: VerifierVersion | None = None,
    name: str = "",
) -> Run:
    return run_launch(
        kind=kind,
        project=project,
        actor=actor,
        name=name or kind.replace("_", " "),
        base_model=base_model,
        dataset=dataset,
        eval_dataset=heldout,
        verifier_version=verifier_version,
        eval_verifier_version=eval_verifier_version,
        settings=settings,
        probe_override=UNPROBED,
    )


def manifest(run: Run, train: dict[str, Any], *, reward: dict[str, Any] | None = None) -> records.Manifest:
    """As `sealed_run.manifest`, with what this kind's trainer says of its data."""
    made = sealed_run.manifest(run)
    data = {**made.data, "train": {"path": "inputs/a.jsonl", "sha256": run.dataset.sha256, "dropped": 0, **train}}
    model = {**made.model, "provenance": None}
    return made.model_copy(update={"data": data, "model": model, "reward": reward or {}})


def steps(number: int, metrics: dict[str, float]) -> list[records.Record]:
    return [
        records.StepMetrics(
            step=step, metrics={**metrics, "num_tokens": 100.0 * step, "epoch": 0.5 * step}, seconds={"total": 1.0}
        )
        for step in range(1, number + 1)
    ]


def ended(number: int, totals: dict[str, float], *, weights: str = "") -> list[records.Record]:
    """`weights`: digest of the final weights; empty where none were trained."""
    last = records.Outcome(
        status="finished",
        message=f"Finished {number} steps.",
        steps_done=number,
        steps_planned=number,
        totals=totals,
        final_checkpoint="checkpoints/final" if weights else None,
    )
    return [*([sealed_run.checkpoint(number, final=True, sha256=weights)] if weights else []), last]


# ---------------------------------------------------------------------- what each kind's trainer reports

LEARNED = {**dict.fromkeys(sealed_run.TOTALS, 0.0), "tokens": 300.0, "seconds": 12.5}
"""Totals of a run that samples nothing."""
CONVERSATION_FACTS = {
    "content": "conversations",
    "problems": 16,
    "problems_digest": "c" * 64,
    "rows": 16,
    "prompt_tokens": {"min": 18, "mean": 18.75, "max": 19},
    "tokens": 400,
    "learned_tokens": 100,
    "format": "messages",
}
PREFERENCE_FACTS = {
    "problems": 16,
    "problems_digest": "c" * 64,
    "prompts": 16,
    "format": "pairs",
    "prompt_tokens": {"min": 18, "mean": 18.75, "max": 19},
}


def heldout_loss(phase: str, step: int, loss: float) -> records.Event:
    data = {"phase": phase, "step": step, "loss": loss, "mean_token_accuracy": 0.5, "tokens": 25, "conversations": 4}
    return records.Event(type="heldout_loss", message=f"held-out loss {loss} {phase} training", data=data)


def fine_tuned(
    run: Run,
    *,
    before: Sequence[float] = (),
    after: Sequence[float] = (),
    weights: str = "9" * 64,
    protocol: dict[str, Any] = sealed_run.PROTOCOL,
) -> list[records.Record]:
    """Three steps of fine-tuning. `before` and `after`: scores of held-out problems."""
    metrics = {"loss": 0.5, "mean_token_accuracy": 0.75, "learning_rate": 1e-5}
    return [
        records.PhaseStarted(phase="loading"),
        manifest(run, CONVERSATION_FACTS),
        *(sealed_run.evaluation("before", before, protocol) if before else ()),
        heldout_loss("before", 0, 2.0),
        records.PhaseStarted(phase="training", total=3),
        *steps(3, metrics),
        *(sealed_run.evaluation("after", after, protocol) if after else ()),
        heldout_loss("after", 3, 1.25),
        *ended(3, LEARNED, weights=weights),
    ]


def sampled(run: Run) -> list[records.Record]:
    """24 completions of which 14 were kept."""
    totals = {**sealed_run.TOTALS, "kept": 14.0, "dropped_wrong": 7.0, "dropped_duplicate": 3.0, "problems_kept": 5.0}
    made = manifest(
        run, {"problems": 20, "problems_digest": "c" * 64, "prompt_tokens": {"min": 1, "mean": 2.0, "max": 3}}
    )
    groups = [record for number in (1, 2, 3) for record in sealed_run.step(number, 0.5)]
    return [records.PhaseStarted(phase="loading"), made, *groups, *ended(3, totals)]


PREFERENCE_FIGURES = {
    "accuracy": {"share": 0.75, "low": 0.3, "high": 0.95, "pairs": 4, "prompts": 4},
    "calibration": {"bins": [{"from": 0.5, "to": 0.55, "pairs": 4, "certainty": 0.52, "right": 0.75}], "ece": 0.23},
    "length": {"rho": -0.5, "chosen_shorter": {"share": 0.5, "pairs": 2}, "chosen_longer": None, "equal": 2},
}


def ranked(run: Run, *, weights: str = "8" * 64) -> list[records.Record]:
    """A reward model's training."""
    data = {"step": 3, "loss": 0.5, **PREFERENCE_FIGURES}
    event = records.Event(type="reward_model_facts", message="75 % ranked right", data=data)
    return [
        records.PhaseStarted(phase="loading"),
        manifest(run, PREFERENCE_FACTS),
        *sealed_run.evaluation("before", [1.0, 1.0, 0.0, 0.0], sealed_run.PROTOCOL),
        *steps(3, {"loss": 0.6, "rewards/accuracies": 0.75}),
        *sealed_run.evaluation("after", [1.0, 1.0, 1.0, 0.0], sealed_run.PROTOCOL),
        event,
        *ended(3, LEARNED, weights=weights),
    ]


def registered(record: Record, *, name: str, actor: User) -> BaseModel:
    """The final weights of the record's run, as a base model for the next stage."""
    final = Checkpoint.objects.get(run=record.run_id, final=True)
    Checkpoint.objects.filter(pk=final.pk).update(stored_at=final.at)
    return checkpoint_register(checkpoint=Checkpoint.objects.get(pk=final.pk), actor=actor, name=name)
