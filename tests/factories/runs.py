"""Rows of runs for the tests of pages: the run through its service, what a trainer reports written by hand, so that
every number a page must show is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from django.db import transaction
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.review.models import Group, Sample
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Node, Run, RunEvent, RunState, StepMetric
from cohort.runs.services import run_create, run_launch
from cohort.runs.transitions import ALLOWED

HOSTILE = "<script>alert(1)</script>\u202e\x07 <b hx-get='/'>x</b>"
"""What no page may run or hide: markup, a bidi override, a control character, an htmx attribute."""
HOSTILE_SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;"


@dataclass
class Maker:
    """Makes runs of one project."""

    project: Project
    actor: User
    base_model: BaseModel
    dataset: PromptDataset
    verifier_version: VerifierVersion

    def run(self, name: str = "adder", *, state: str = "draft", preset: str | None = None, **settings: Any) -> Run:
        run = run_create(**self._named(name), settings={"preset": preset, "eval": {"holdout": 4}, **settings})
        put_in(run, state)
        return run

    def launched(self, name: str, **settings: Any) -> Run:
        """By the service that the form calls, so that it waits with its message in the queue."""
        return run_launch(**self._named(name), settings=settings)

    def _named(self, name: str) -> dict[str, Any]:
        return {
            "project": self.project,
            "actor": self.actor,
            "name": name,
            "base_model": self.base_model,
            "dataset": self.dataset,
            "verifier_version": self.verifier_version,
        }

    def attempt(self, run: Run, *, state: str = "running", beat_seconds_ago: float = 3) -> Attempt:
        now = timezone.now()
        node, _ = Node.objects.get_or_create(
            name="node-a", defaults={"token_digest": "0" * 64, "last_seen_at": now - timedelta(seconds=5)}
        )
        run.fence += 1
        run.save(update_fields=["fence"])
        return Attempt.objects.create(
            run=run,
            node=node,
            fence=run.fence,
            state=state,
            token_digest=f"{run.pk:032d}{run.fence:032d}",
            claimed_at=now - timedelta(minutes=2),
            heartbeat_at=now - timedelta(seconds=beat_seconds_ago),
            lease_until=now + timedelta(seconds=50),
        )


def gone_on(attempt: Attempt, step: int, *, reason: str = "") -> None:
    """The attempt goes on from this step, and what earlier ones recorded beyond it is superseded, as ingest has it."""
    attempt.resumed_step = step
    attempt.save()
    earlier = Attempt.objects.filter(run=attempt.run, fence__lt=attempt.fence)
    earlier.update(valid_through=step, **({"end_reason": reason} if reason else {}))


def put_in(run: Run, state: str, **fields: Any) -> None:
    """Bring the run's row into `state` by the shortest way that the database lets it go, and set `fields` with it."""
    ways: list[tuple[RunState, ...]] = [(RunState(run.state),)]
    while ways[0][-1] != state:
        way = ways.pop(0)
        ways += [(*way, after) for after in sorted(ALLOWED[way[-1]]) if after not in way]
    for passed in ways[0][1:]:
        now = timezone.now()
        times = {"queued_at": now} if passed == RunState.QUEUED else {}
        Run.objects.filter(pk=run.pk).update(state=passed, **times)
        if passed == RunState.PAUSED:
            told = {"from": "training", "to": passed}
            RunEvent.objects.create(run=run, at=now, actor="node:node-a", kind="state", message="Paused", data=told)
    if fields:
        Run.objects.filter(pk=run.pk).update(**fields)
    run.refresh_from_db()


def add_steps(attempt: Attempt, metrics: Sequence[dict[str, float]], *, first: int = 1) -> None:
    """One step for each, and the run's own summary of them as ingest keeps it, in one transaction as there."""
    with transaction.atomic():
        _add_steps(attempt, metrics, first)


def _add_steps(attempt: Attempt, metrics: Sequence[dict[str, float]], first: int) -> None:
    run = attempt.run
    for place, numbers in enumerate(metrics):
        attempt.acked_seq += 1
        StepMetric.objects.create(
            attempt=attempt,
            run=run,
            seq=attempt.acked_seq,
            step=first + place,
            at=timezone.now(),
            metrics=numbers,
            seconds={"sample": 0.9, "update": 0.5, "other": 0.1, "total": 1.5},
        )
    attempt.save()
    run.step = first + len(metrics) - 1
    run.first_metrics, run.latest_metrics = run.first_metrics or metrics[0], metrics[-1]
    run.save()


def add_group(
    attempt: Attempt,
    rewards: Sequence[float | None],
    *,
    step: int = 1,
    index: int = 0,
    prompt: str = "what is 49 + 78?",
    answer: str = "127",
    advantages: Sequence[float] | None = None,
    completion: str = "<think>9+8=17</think><answer>127</answer>",
    signal: str = "mixed",
    detail: str = "extracted 127",
    discarded: str = "",
    sampled_at: int | None = None,
    shaped: Sequence[float | None] | None = None,
    masked: Mapping[int, str] = MappingProxyType({}),
) -> Group:
    """A group whose samples are right where the reward is 1; a sample without reward is masked."""
    attempt.acked_seq += 1
    attempt.save()
    known = [reward for reward in rewards if reward is not None]
    group = Group.objects.create(
        attempt=attempt,
        run=attempt.run,
        seq=attempt.acked_seq,
        step=step,
        index=index,
        problem_id=f"p{index}",
        prompt=prompt,
        answer=answer,
        reward_mean=sum(known) / len(known) if known else None,
        reward_std=0.5 if known else None,
        signal=signal,
        discarded=discarded,
        sampled_at=sampled_at,
    )
    Sample.objects.bulk_create(
        Sample(
            group=group,
            index=place,
            completion=completion,
            tokens=52,
            finish_reason="eos",
            reward=reward,
            components={
                "format": {"value": 1.0, "passed": True, "detail": "", "seconds": 0.0, "error": None},
                "answer": {
                    "value": reward,
                    "passed": None if reward is None else reward == 1,
                    "detail": detail,
                    "seconds": 0.0,
                    "error": "ValueError: no number" if reward is None else None,
                },
            },
            advantage=advantages[place] if advantages else 0.0,
            shaped_reward=shaped[place] if shaped else None,
            mask_cause="reward_error" if reward is None else masked.get(place, ""),
        )
        for place, reward in enumerate(rewards)
    )
    return group


def add_checkpoint(
    attempt: Attempt,
    step: int,
    *,
    size: int = 12_000_000,
    final: bool = False,
    best: bool = False,
    pinned: bool = False,
    stored: bool = False,
    removed: bool = False,
) -> Checkpoint:
    """A checkpoint of two files, cut just now."""
    attempt.acked_seq += 1
    attempt.save()
    now = timezone.now()
    entries = {
        name: {"size": part, "sha256": f"{attempt.pk:032d}{step:032d}"[:63] + str(place)}
        for place, (name, part) in enumerate({"weights.safetensors": size - 1000, "state.json": 1000}.items())
    }
    return Checkpoint.objects.create(
        attempt=attempt,
        run=attempt.run,
        seq=attempt.acked_seq,
        step=step,
        at=now,
        path="checkpoints/final" if final else f"checkpoints/step-{step:06d}",
        files=entries,
        final=final,
        best=best,
        pinned=pinned,
        seconds=0.4,
        stored_at=now if stored else None,
        removed_at=now if removed else None,
    )


def add_evaluation(
    attempt: Attempt,
    phase: str,
    scores: Sequence[float],
    *,
    suite: str = "held-out",
    completion: str = "<answer>1</answer>",
    slices: Sequence[str] = (),
    clusters: Sequence[str] = (),
) -> EvalResult:
    """`slices` and `clusters` go round, item by item."""
    protocol = {"template": "{prompt}", "seed": 0}
    for place, score in enumerate(scores):
        attempt.acked_seq += 1
        EvalItem.objects.create(
            attempt=attempt,
            run=attempt.run,
            seq=attempt.acked_seq,
            phase=phase,
            suite=suite,
            problem_id=f"held-{place}",
            prompt=f"what is {place} + 1?",
            answer=str(place + 1),
            completion=f"{phase} {place} {completion}",
            score=score,
            truncated=False,
            tokens=10,
            slice=slices[place % len(slices)] if slices else "",
            cluster=clusters[place % len(clusters)] if clusters else "",
        )
    attempt.acked_seq += 1
    attempt.save()
    return EvalResult.objects.create(
        attempt=attempt,
        run=attempt.run,
        seq=attempt.acked_seq,
        at=timezone.now(),
        phase=phase,
        suite=suite,
        problems=len(scores),
        correct=sum(scores),
        truncated=0,
        errors=0,
        mean_tokens=10.0,
        seconds=1.0,
        protocol=protocol,
    )
