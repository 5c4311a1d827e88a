"""Runs that have ended, made through the platform's own path: launched, claimed, their records ingested, finished.

No trainer runs here; the records are written by hand, so that what the governance record must say is known.
"""

import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import zstandard

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite
from cohort.catalog.suites import starters_add
from cohort.ingest.batch import batch_ingest
from cohort.launch.creation import run_launch
from cohort.nodes.models import Node
from cohort.nodes.services import node_create
from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.records.status.services import status_issue
from cohort.runs.attempts import attempt_claim, attempt_finish
from cohort.runs.models import Attempt, Run
from grpo_core.protocol.messages import Finish, NodeInfo
from grpo_core.records import types as records
from grpo_core.records.commitments import commit
from tests.factories.documents import ROWS
from tests.factories.worker import VERSIONS

AT = datetime(2026, 11, 21, 14, 2, 3, tzinfo=UTC)
SETTINGS: dict[str, Any] = {
    "preset": "demo",
    "optim": {"steps": 3},
    "sampling": {"group_size": 4, "prompts_per_step": 2},
}
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
    hypotheses: str = "",
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
        hypotheses=hypotheses,
        probe_override="The reward is of this test alone.",
    )


def attempted(run: Run, reported: Sequence[records.Record], *, node: str = "gpu-1", **end: str) -> Run:
    """The run after another attempt, whose trainer reported this and ended by `finish`."""
    attempt = claim(run, node=node)
    if reported:
        ingest(attempt, reported)
    return finish(attempt, **end)


def finished(run: Run, reported: Sequence[records.Record] | None = None) -> Run:
    """The launched run, trained and waiting for its record; its trainer `reported` this, or all that a run does."""
    return attempted(run, whole(run) if reported is None else reported)


def sealed(run: Run) -> Record:
    """The run's record, with its first status, which the platform's worker signs once the record is stored."""
    record = record_seal(run=finished(run))
    status_issue(record=record)
    return record


def claim(run: Run, *, node: str = "gpu-1") -> Attempt:
    """An attempt of this run, whose turn it must be."""
    row = Node.objects.filter(name=node).first() or node_create(name=node)[0]
    info = NodeInfo(hostname=node, cpus=2, memory_bytes=1, versions=VERSIONS)
    attempt = attempt_claim(run_id=run.pk, node=row, info=info)[0]
    assert attempt.run_id == run.pk
    return attempt


def ingest(attempt: Attempt, reported: Sequence[records.Record]) -> None:
    numbered = enumerate(reported, attempt.acked_seq + 1)
    lines = [records.Envelope(seq=seq, at=AT, record=record).model_dump_json() for seq, record in numbered]
    body = zstandard.ZstdCompressor().compress("\n".join([*lines, ""]).encode())
    send_batch(attempt, body)
    attempt.refresh_from_db()


def send_batch(attempt: Attempt, body: bytes, *, fence: int | None = None) -> int:
    """As the attempt's own worker sends it."""
    fence = attempt.fence if fence is None else fence
    digest = attempt.token_digest
    attempt.acked_seq = batch_ingest(attempt_id=attempt.pk, digest=digest, fence=fence, body=body)
    return attempt.acked_seq


def finish(attempt: Attempt, *, end: str = "finished", code: str = "ok", message: str = "done") -> Run:
    facts = {"fence": attempt.fence, "end": end, "code": code, "message": message, "last_seq": attempt.acked_seq}
    attempt_finish(attempt=attempt, finish=Finish.model_validate(facts))
    return Run.objects.get(pk=attempt.run_id)


def manifest(run: Run) -> records.Manifest:
    facts = copy.deepcopy(ROWS["run_manifest"])
    eval_dataset = run.eval_dataset
    facts["model"] |= {"source": run.base_model.path}
    facts["model"] |= {"weights": {name: entry["sha256"] for name, entry in run.base_model.weights.items()}}
    facts["data"]["train"] |= {"sha256": run.dataset.sha256}
    facts["data"]["eval"] |= {
        "sha256": (eval_dataset or run.dataset).sha256,
        "problems": eval_dataset.problems if eval_dataset else 4,
    }
    return records.Manifest.model_validate({**facts, "config_digest": run.config_digest})


def evaluation(phase: records.Phase, scores: Sequence[float], protocol: dict[str, Any]) -> list[records.Record]:
    items = [
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
    return _evaluated(items, protocol)


def _suite(
    phase: records.Phase, suite: str, scores: Sequence[float], slices: Sequence[str] = ("",)
) -> list[records.Record]:
    """An evaluation of a suite: items with these scores, in slices by turns."""
    items = [
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
        )
        for n, score in enumerate(scores)
    ]
    return _evaluated(items, {**PROTOCOL, "items_digest": "d" * 64, "scorer_digest": "e" * 64})


def _evaluated(items: Sequence[records.EvalItem], protocol: dict[str, Any]) -> list[records.Record]:
    result = records.EvalResult(
        phase=items[0].phase,
        suite=items[0].suite,
        problems=len(items),
        correct=sum(item.score for item in items),
        truncated=sum(item.truncated for item in items),
        errors=0,
        mean_tokens=items[0].tokens,
        seconds=0.5,
        protocol=protocol,
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
    """`whole`, with these scores of suites beside the held-out problems. `overlap`: what the trainer reported of their
    items in the training file."""
    suites, reported = {"before": before, "after": after}, []
    for record in whole(run):
        if overlap is not None and isinstance(record, records.Manifest):
            record = record.model_copy(update={"data": {**record.data, "overlap": dict(overlap)}})
        reported.append(record)
        if isinstance(record, records.EvalResult):
            for suite, scores in suites[record.phase].items():
                reported += _suite(record.phase, suite, scores, (slices or {}).get(suite, ("",)))
    return reported


def touched(*ids: str, items: int) -> dict[str, Any]:
    """A report of `grpo_core.data.decontaminate` that these items occur word for word."""
    by_method = dict.fromkeys(("ngram13", "ngram8", "minhash", "same_but_numbers"), 0)
    exact = {"exact": {"train": "add-10", "share": 1.0, "texts": 1}}
    return {
        "method": {"name": "cohort-overlap-1"},
        "train": {"texts": 20, "without_words": 0},
        "items": {"texts": items, "different": items, "without_words": [], "common_ngrams": 0, "without_own_ngram": 0},
        "counts": {"touched": len(ids), "exact": len(ids), **by_method},
        "touched": [{"id": item, "by": exact} for item in ids],
        "same_but_numbers": [],
    }


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


PROTOCOL = {"temperature": 0.0, "seed": 0, "problems_digest": "f" * 64}
BEFORE = [1.0] * 30 + [0.0] * 70
"""30 of 100."""
AFTER = [1.0] * 28 + [0.0] * 2 + [1.0] * 52 + [0.0] * 18
"""80 of 100: 52 fixed, 2 broken, 28 right both times, 18 wrong both times."""
TOTALS: dict[str, float] = ROWS["run_totals"]


def checkpoint(number: int, *, final: bool = False, sha256: str = "") -> records.CheckpointManifest:
    name = "model.safetensors" if final else "policy.safetensors"
    files = {name: records.FileEntry(size=96, sha256=sha256 or f"{number:064x}")}
    path = "checkpoints/final" if final else f"checkpoints/step-{number:06d}"
    return records.CheckpointManifest(step=number, path=path, files=files, final=final)


def ended(
    steps: int, scores: Sequence[float], *, protocol: dict[str, Any] = PROTOCOL, sha256: str = "", more: str = "."
) -> list[records.Record]:
    """From the last step to the end; `sha256` of the weights."""
    return [
        records.PhaseStarted(phase="evaluating_after", total=100),
        *evaluation("after", scores, protocol),
        checkpoint(steps, final=True, sha256=sha256),
        records.Outcome(
            status="finished",
            message=f"Finished {steps} steps{more}",
            steps_done=steps,
            steps_planned=steps,
            totals=TOTALS,
            final_checkpoint="checkpoints/final",
        ),
    ]


def whole(run: Run, *, after_protocol: dict[str, Any] = PROTOCOL) -> list[records.Record]:
    """Every record of a run of three steps that finished."""
    signal = "; 4 of 6 groups carried a signal."
    return [
        records.PhaseStarted(phase="loading"),
        manifest(run),
        records.PhaseStarted(phase="evaluating_before", total=100),
        *evaluation("before", BEFORE, PROTOCOL),
        records.PhaseStarted(phase="training", total=3),
        *step(1, 0.5),
        *step(2, 0.6),
        *step(3, 0.75),
        *ended(3, AFTER, protocol=after_protocol, sha256="9" * 64, more=signal),
    ]
