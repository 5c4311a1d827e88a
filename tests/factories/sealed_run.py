"""Runs that have ended, made through the platform's own path: launched, claimed, their records ingested, finished.

No trainer runs here; the records are written by hand, so that what the governance record must say is known.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import zstandard

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.suites import starters_add
from cohort.governance.models import Record
from cohort.governance.services import record_seal
from cohort.governance.statements.services import statement_make
from cohort.runs.attempts import attempt_claim, attempt_finish
from cohort.runs.ingest import records_ingest
from cohort.runs.models import Attempt, Node, Run
from cohort.runs.nodes import node_create
from cohort.runs.services import ChosenSuite, run_launch
from grpo_core import records
from grpo_core.commitments import commit
from grpo_core.wire import Finish, NodeInfo

AT = datetime(2026, 11, 21, 14, 2, 3, tzinfo=UTC)
SETTINGS: dict[str, Any] = {
    "preset": "demo",
    "optim": {"steps": 3},
    "sampling": {"group_size": 4, "prompts_per_step": 2},
}
CARD_FILES = [
    "CARD.md",
    "README.txt",
    "attestation.dsse.json",
    "bom.cdx.json",
    "card.html",
    "card.pdf",
    "commitments.jsonl",
    "config.yaml",
    "consistency.json",
    "evals/after.jsonl",
    "evals/before.jsonl",
    "evals/texts-after.jsonl",
    "evals/texts-before.jsonl",
    "events.jsonl",
    "keys.json",
    "log-entry.json",
    "manifest.json",
    "metrics.jsonl",
    "outcome.json",
    "proof.tlog-proof",
    "record.json",
    "record.schema.json",
    "sheets/eu-documentation-form.md",
    "sheets/nist-ai-rmf.md",
    "traces/steps-000001-000100.jsonl",
    "verify.pyz",
    "weights.dsse.json",
]
"""What the card of such a run holds for the project itself, sorted."""
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
    suites: Sequence[str] = (),
) -> Run:
    """`suites`: names of starter suites, each with a margin of 5 points."""
    chosen = []
    if suites:
        starters_add(project=project, actor=actor, names=suites)
        versions = EvalSuiteVersion.objects.filter(suite__project=project, suite__name__in=suites)
        chosen = [ChosenSuite(version, margin=0.05) for version in versions.order_by("suite__name")]
    return run_launch(
        project=project,
        actor=actor,
        name=name,
        base_model=base_model,
        dataset=dataset,
        eval_dataset=heldout,
        verifier_version=verifier_version,
        settings=settings or SETTINGS,
        suites=chosen,
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


def suite_items(
    phase: records.Phase,
    suite: str,
    scores: Sequence[float],
    *,
    slices: Sequence[str] = ("",),
    clusters: int = 0,
) -> list[records.Record]:
    """An evaluation of a suite: items with these scores, in slices by turns; `clusters`: how many items hang together
    (0: none)."""
    items: list[records.Record] = [
        records.EvalItem(
            phase=phase,
            suite=suite,
            problem_id=f"{suite}-{n}",
            prompt=f"{suite} asks {n}",
            answer=str(n),
            completion=f"said {phase} to {n}",
            score=score,
            truncated=False,
            error=None,
            tokens=12,
            slice=slices[n % len(slices)],
            cluster=f"c{n // clusters}" if clusters else "",
        )
        for n, score in enumerate(scores)
    ]
    result = records.EvalResult(
        phase=phase,
        suite=suite,
        problems=len(scores),
        correct=sum(scores),
        truncated=0,
        errors=0,
        mean_tokens=12.0,
        seconds=0.5,
        protocol={**PROTOCOL, "items_digest": "d" * 64, "scorer_digest": "e" * 64},
    )
    return [*items, result]


def with_suites(
    run: Run,
    before: Mapping[str, Sequence[float]],
    after: Mapping[str, Sequence[float]],
    *,
    slices: Mapping[str, Sequence[str]] | None = None,
    overlap: Mapping[str, Any] | None = None,
) -> list[records.Record]:
    """`whole`, with these scores of suites beside the held-out problems. `overlap`: what the trainer found of their
    items in the training file."""
    found = whole(run)
    if overlap is not None:
        (place,) = (at for at, one in enumerate(found) if isinstance(one, records.Manifest))
        told = found[place]
        assert isinstance(told, records.Manifest)
        found[place] = told.model_copy(update={"data": {**told.data, "overlap": dict(overlap)}})
    phases: tuple[tuple[records.Phase, Mapping[str, Sequence[float]]], ...] = (("before", before), ("after", after))
    for phase, scores in phases:
        (end,) = (at for at, one in enumerate(found) if isinstance(one, records.EvalResult) and one.phase == phase)
        more = [suite_items(phase, name, of, slices=(slices or {}).get(name, ("",))) for name, of in scores.items()]
        found[end + 1 : end + 1] = [record for part in more for record in part]
    return found


def touched(*ids: str, items: int) -> dict[str, Any]:
    """A report of `grpo_core.data.decontaminate` that found these items word for word."""
    return {
        "method": {"name": "cohort-overlap-1"},
        "train": {"texts": 20, "without_words": 0},
        "items": {"texts": items, "different": items, "without_words": [], "common_ngrams": 0, "without_own_ngram": 0},
        "counts": {
            "touched": len(ids),
            "exact": len(ids),
            "ngram13": 0,
            "ngram8": 0,
            "minhash": 0,
            "same_but_numbers": 0,
        },
        "touched": [{"id": one, "by": {"exact": {"train": "add-10", "share": 1.0, "texts": 1}}} for one in ids],
        "same_but_numbers": [],
    }


STATED: dict[str, dict[str, Any]] = {
    "reward.verifiable_or_social": {"chosen": ["verifiable"]},
    "reward.domain": {"chosen": ["mathematics", "format"], "text": "sums of two numbers"},
    "reward.brittleness": {"text": "an answer in words is refused"},
    "handling.trace_policy": {"chosen": ["exposed"]},
    "handling.inventory": {"text": "https://inventory.example/7"},
}
"""What `stated` states, by field."""


def stated(run: Run, actor: User, **more: dict[str, Any]) -> None:
    """Some answers to what a machine cannot know; `more` by field with `__` for the point."""
    for name, answer in {**STATED, **{name.replace("__", "."): one for name, one in more.items()}}.items():
        statement_make(run=run, actor=actor, field=name, **answer)


def step(number: int, reward: float, *, tokens: float | None = None) -> list[records.Record]:
    """One step's metrics, the commitments to its two groups, and the one of them that is kept. `tokens`: sampled in the
    run so far."""
    (kept, _), committed = commit([_group(number, place) for place in range(2)])
    metrics = {"reward": reward} if tokens is None else {"reward": reward, "num_tokens": tokens}
    return [records.StepMetrics(step=number, metrics=metrics, seconds={"total": 1.0}), committed, kept]


def _group(number: int, place: int) -> records.Group:
    samples = tuple(
        records.Sample(
            index=index,
            completion=f"{HOSTILE} {number}.{index}" if place == 0 else f"not kept {number}.{index}",
            tokens=20,
            finish_reason="eos",
            reward=float(index % 2),
            components={"answer": records.ComponentScore(value=float(index % 2), passed=index % 2 == 1, detail="82")},
            advantage=1.0 if index % 2 else -1.0,
        )
        for index in range(4)
    )
    return records.Group(
        step=number,
        index=place,
        problem_id=f"add-{10 + place}",
        prompt="what is 10 + 7?",
        answer="17",
        reward_mean=0.5,
        reward_std=0.5,
        signal="mixed",
        samples=samples,
    )


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
