"""Runs that have ended, made through the platform's own path: launched, claimed, their records ingested, finished.

No trainer runs here; the records are written by hand, so that what the governance record must say is known.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import zstandard

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.governance.models import Record
from cohort.governance.services import record_seal
from cohort.runs.attempts import attempt_claim, attempt_finish
from cohort.runs.ingest import records_ingest
from cohort.runs.models import Attempt, Node, Run
from cohort.runs.nodes import node_create
from cohort.runs.services import run_launch
from grpo_core import records
from grpo_core.wire import Finish, NodeInfo

AT = datetime(2026, 11, 21, 14, 2, 3, tzinfo=UTC)
SETTINGS: dict[str, Any] = {
    "preset": "demo",
    "optim": {"steps": 3},
    "sampling": {"group_size": 4, "prompts_per_step": 2},
}
CARD_FILES = [
    "CARD.md",
    "card.html",
    "config.yaml",
    "evals/after.jsonl",
    "evals/before.jsonl",
    "events.jsonl",
    "manifest.json",
    "metrics.jsonl",
    "outcome.json",
    "record.json",
    "record.schema.json",
    "traces/steps-000001-000100.jsonl",
]
"""What a card of such a run holds, sorted."""
HOSTILE = "<script>alert(1)</script> \u202e | `x` [a](javascript:b) </answer>"


def launch(
    *,
    project: Project,
    actor: User,
    base_model: BaseModel,
    dataset: PromptDataset,
    heldout: PromptDataset | None,
    verifier_version: VerifierVersion,
    name: str = "Two-digit addition",
    settings: dict[str, Any] | None = None,
) -> Run:
    return run_launch(
        project=project,
        actor=actor,
        name=name,
        base_model=base_model,
        dataset=dataset,
        eval_dataset=heldout,
        verifier_version=verifier_version,
        settings=settings or SETTINGS,
    )


def finished(run: Run, found: Sequence[records.Record] | None = None) -> Run:
    """The launched run, trained and waiting for its record; its trainer reported `found`, or all that a run does."""
    attempt = claim(run)
    ingest(attempt, whole(run) if found is None else found)
    return finish(attempt)


def sealed(run: Run) -> Record:
    return record_seal(run=finished(run))


def claim(run: Run, *, node: str = "gpu-1") -> Attempt:
    """An attempt of this run, whose turn it must be."""
    row = Node.objects.filter(name=node).first() or node_create(name=node)[0]
    info = NodeInfo(hostname=node, cpus=2, memory_bytes=1)
    attempt = attempt_claim(run_id=run.pk, node=row, info=info).attempt
    assert attempt.run_id == run.pk
    return attempt


def ingest(attempt: Attempt, found: Sequence[records.Record]) -> None:
    begin = attempt.acked_seq + 1
    lines = [
        records.Envelope(seq=seq, at=AT, record=record).model_dump_json() for seq, record in enumerate(found, begin)
    ]
    body = zstandard.ZstdCompressor().compress("\n".join([*lines, ""]).encode())
    records_ingest(attempt=attempt, fence=attempt.fence, body=body)
    attempt.refresh_from_db()


def finish(attempt: Attempt, *, end: str = "finished", code: str = "ok", message: str = "done") -> Run:
    said = Finish.model_validate(
        {"fence": attempt.fence, "end": end, "code": code, "message": message, "last_seq": attempt.acked_seq}
    )
    attempt_finish(attempt=attempt, finish=said)
    return Run.objects.get(pk=attempt.run_id)


def manifest(run: Run) -> records.Manifest:
    weights = {name: entry["sha256"] for name, entry in run.base_model.weights.items()}
    tokens = {"min": 16, "mean": 16.0, "max": 16}
    return records.Manifest(
        code={"version": "0.1.0", "git_commit": "a" * 40, "dirty_sha256": None},
        packages={"torch": "2.13.0", "transformers": "5.23.0"},
        platform={"python": "3.11", "processor": "test processor", "threads": 2, "device": "cpu", "cpus": 2},
        model={
            "source": run.base_model.path,
            "revision": None,
            "architecture": "Qwen2ForCausalLM",
            "parameters": 1000,
            "dtype": "float32",
            "weights": weights,
            "tokenizer_sha256": "b" * 64,
            "provenance": {"method": "supervised cold start", "recipe": {"steps": 250}},
        },
        data={
            "train": {
                "path": "inputs/a.jsonl",
                "sha256": run.dataset.sha256,
                "problems": 20,
                "problems_digest": "c" * 64,
                "dropped": 1,
                "prompt_tokens": tokens,
            },
            "eval": {
                "path": "inputs/b.jsonl",
                "sha256": run.eval_dataset.sha256 if run.eval_dataset else run.dataset.sha256,
                "problems": run.eval_dataset.problems if run.eval_dataset else 4,
                "problems_digest": "e" * 64,
                "dropped": 0,
                "prompt_tokens": tokens,
            },
        },
        seeds={"run": 0},
        config_digest=run.config_digest,
    )


def evaluation(phase: records.Phase, scores: Sequence[float], protocol: dict[str, Any]) -> list[records.Record]:
    items: list[records.Record] = [
        records.EvalItem(
            phase=phase,
            suite="heldout",
            problem_id=f"add-{n}",
            prompt=f"what is {n} + 1?",
            answer=str(n + 1),
            completion=HOSTILE if n == 0 else f"<think>a</think><answer>{n}</answer>",
            score=score,
            truncated=n == 1,
            error=None,
            tokens=20,
        )
        for n, score in enumerate(scores)
    ]
    result = records.EvalResult(
        phase=phase,
        suite="heldout",
        problems=len(scores),
        correct=sum(scores),
        truncated=1,
        errors=0,
        mean_tokens=20.0,
        seconds=0.5,
        protocol=protocol,
    )
    return [*items, result]


def step(number: int, reward: float, *, tokens: float | None = None) -> list[records.Record]:
    """One step's metrics and one of its two groups. `tokens`: sampled in the run so far."""
    samples = tuple(
        records.Sample(
            index=index,
            completion=f"{HOSTILE} {number}.{index}",
            tokens=20,
            finish_reason="eos",
            reward=float(index % 2),
            components={"answer": records.ComponentScore(value=float(index % 2), passed=index % 2 == 1, detail="82")},
            advantage=1.0 if index % 2 else -1.0,
        )
        for index in range(4)
    )
    group = records.Group(
        step=number,
        index=0,
        problem_id="add-10",
        prompt="what is 10 + 7?",
        answer="17",
        reward_mean=0.5,
        reward_std=0.5,
        signal="mixed",
        samples=samples,
    )
    metrics = {"reward": reward} if tokens is None else {"reward": reward, "num_tokens": tokens}
    return [records.StepMetrics(step=number, metrics=metrics, seconds={"total": 1.0}), group]


def checkpoint(number: int, *, final: bool = False) -> records.CheckpointManifest:
    files = {"model.safetensors": records.FileEntry(size=96, sha256=f"{number:064x}")}
    path = "checkpoints/final" if final else f"checkpoints/step-{number:06d}"
    return records.CheckpointManifest(step=number, path=path, files=files, final=final)


PROTOCOL = {"temperature": 0.0, "seed": 0, "problems_digest": "f" * 64}
BEFORE = [1.0] * 30 + [0.0] * 70
"""30 of 100."""
AFTER = [1.0] * 28 + [0.0] * 2 + [1.0] * 52 + [0.0] * 18
"""80 of 100: 52 fixed, 2 broken, 28 right both times, 18 wrong both times."""
TOTALS = {
    "samples": 24.0,
    "tokens": 900.0,
    "completion_tokens": 480.0,
    "groups": 6.0,
    "groups_mixed": 4.0,
    "groups_all_equal": 2.0,
    "groups_unscored": 0.0,
    "masked": 1.0,
    "truncated": 3.0,
    "reward_errors": 1.0,
    "seconds": 12.5,
}


def whole(run: Run, *, after_protocol: dict[str, Any] | None = None) -> list[records.Record]:
    """Every record of a run of three steps that finished."""
    files = {"model.safetensors": records.FileEntry(size=96, sha256="9" * 64)}
    return [
        records.PhaseStarted(phase="loading"),
        manifest(run),
        records.PhaseStarted(phase="evaluating_before", total=100),
        *evaluation("before", BEFORE, PROTOCOL),
        records.PhaseStarted(phase="training", total=3),
        *step(1, 0.5),
        *step(2, 0.6),
        *step(3, 0.75),
        records.PhaseStarted(phase="evaluating_after", total=100),
        *evaluation("after", AFTER, after_protocol or PROTOCOL),
        records.CheckpointManifest(step=3, path="checkpoints/final", files=files, final=True),
        records.Outcome(
            status="finished",
            message="Finished 3 steps; 4 of 6 groups carried a signal.",
            steps_done=3,
            steps_planned=3,
            totals=TOTALS,
            final_checkpoint="checkpoints/final",
        ),
    ]
