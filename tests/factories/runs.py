"""Rows of runs for the tests of pages: the run through its service, what a trainer reports written by hand, so that
every number a page must show is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from django.db import transaction
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite
from cohort.launch.creation import run_create, run_launch
from cohort.nodes.models import Node
from cohort.review.facets import Packer
from cohort.review.models import Group, Sample
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Run, RunEvent, RunState, StepMetric
from cohort.runs.transitions import ALLOWED
from grpo_core.records import types as records

HOSTILE = "<script>alert(1)</script>\u202e\x07 <b hx-get='/'>x</b>"
"""What no page may run or hide: markup, a bidi override, a control character, an htmx attribute."""
HOSTILE_SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;"


def dataset_copies(dataset: PromptDataset, count: int, **other: Any) -> list[PromptDataset]:
    """Further datasets of the same file, called `set 0.`, `set 1.` and so on."""
    same = {field.name: getattr(dataset, field.name) for field in dataset._meta.fields if not field.primary_key} | other
    return PromptDataset.objects.bulk_create(
        PromptDataset(**{**same, "name": f"set {number}."}) for number in range(count)
    )


UNPROBED = "The reward is of this test alone."
"""Why a test launches a reward that nobody probed."""


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

    def launched(self, name: str, *suites: ChosenSuite, **settings: Any) -> Run:
        """By the service that the form calls, so that it waits with its message in the queue."""
        return run_launch(**self._named(name), settings=settings, suites=suites, probe_override=UNPROBED)

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
    """The attempt resumes from this step, and what earlier ones recorded beyond it is superseded, as ingest has it."""
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
            data = {"from": "training", "to": passed}
            RunEvent.objects.create(run=run, at=now, actor="node:node-a", kind="state", message="Paused", data=data)
    if fields:
        Run.objects.filter(pk=run.pk).update(**fields)
    run.refresh_from_db()


def _next(attempt: Attempt) -> dict[str, Any]:
    """What places the attempt's next record."""
    attempt.acked_seq += 1
    return {"attempt": attempt, "run": attempt.run, "seq": attempt.acked_seq}


@transaction.atomic
def add_steps(attempt: Attempt, metrics: Sequence[dict[str, float]], *, first: int = 1) -> None:
    """One step for each, and the run's own summary of them as ingest keeps it, in one transaction as there."""
    run, seconds = attempt.run, {"sample": 0.9, "update": 0.5, "other": 0.1, "total": 1.5}
    for step, numbers in enumerate(metrics, start=first):
        row = {"step": step, "at": timezone.now(), "metrics": numbers, "seconds": seconds}
        StepMetric.objects.create(**_next(attempt), **row)
    attempt.save()
    run.step = first + len(metrics) - 1
    run.first_metrics, run.latest_metrics = run.first_metrics or metrics[0], metrics[-1]
    run.save()


def add_group(
    attempt: Attempt,
    rewards: Sequence[float | None],
    *,
    index: int = 0,
    advantages: Sequence[float] | None = None,
    completion: str = "<think>9+8=17</think><answer>127</answer>",
    detail: str = "extracted 127",
    shaped: Sequence[float | None] | None = None,
    masked: Mapping[int, str] = MappingProxyType({}),
    **fields: Any,
) -> Group:
    """A group whose samples are right where the reward is 1; a sample without reward is masked. `fields`: its own."""
    known = [reward for reward in rewards if reward is not None]
    row = {"step": 1, "prompt": "what is 49 + 78?", "answer": "127", "signal": "mixed", **fields}
    row |= {"reward_mean": sum(known) / len(known), "reward_std": 0.5} if known else {}
    group = Group.objects.create(**_next(attempt), index=index, **{"problem_id": f"p{index}", **row})
    attempt.save()
    made = (
        {
            "completion": completion,
            "tokens": 52,
            "finish_reason": "eos",
            "reward": reward,
            "components": {"format": _score(1.0, ""), "answer": _score(reward, detail)},
            "advantage": advantages[number] if advantages else 0.0,
            "shaped_reward": shaped[number] if shaped else None,
            "mask_cause": "reward_error" if reward is None else masked.get(number),
        }
        for number, reward in enumerate(rewards)
    )
    add_samples(group, made)
    return group


def add_samples(group: Group, rows: Iterable[Mapping[str, Any]]) -> None:
    """Samples as their records have them, with the columns by which they are searched."""
    packer = Packer(group.run.parsed_config.reward)
    samples = []
    for index, row in enumerate(rows):
        record = records.Sample.model_validate({"index": index, **row})
        columns = record.model_dump(mode="json", exclude={"flags", "salt"})
        columns |= {"mask_cause": record.mask_cause or "", "salt": record.salt or ""}
        columns |= {"tokens_sha256": record.tokens_sha256 or ""}
        columns |= {"facets": packer.facets(record, group.discarded)}
        columns |= {"component_values": packer.values(record.components)}
        samples.append(Sample(group=group, run=group.run, attempt=group.attempt, step=group.step, **columns))
    Sample.objects.bulk_create(samples)


def _score(value: float | None, detail: str) -> dict[str, Any]:
    scored = {"value": value, "passed": value == 1, "error": None}
    failed = {"value": None, "passed": None, "error": "ValueError: no number"}
    return {**(failed if value is None else scored), "detail": detail, "seconds": 0.0}


def add_checkpoint(
    attempt: Attempt,
    step: int,
    *,
    size: int = 12_000_000,
    final: bool = False,
    stored: bool = False,
    removed: bool = False,
    **fields: Any,
) -> Checkpoint:
    """A checkpoint of two files, cut just now. It is none that could be loaded."""
    now, digest = timezone.now(), f"{attempt.pk:032d}{step:032d}"[:63]
    weights, state = {"size": size - 1000, "sha256": f"{digest}0"}, {"size": 1000, "sha256": f"{digest}1"}
    checkpoint = Checkpoint.objects.create(
        **_next(attempt),
        step=step,
        at=now,
        path="checkpoints/final" if final else f"checkpoints/step-{step:06d}",
        files={"model.safetensors": weights, "config.json": state}
        if final
        else {"policy.safetensors": weights, "state.json": state},
        final=final,
        seconds=0.4,
        stored_at=now if stored else None,
        removed_at=now if removed else None,
        **fields,
    )
    attempt.save()
    return checkpoint


def add_evaluation(
    attempt: Attempt,
    phase: str,
    scores: Sequence[float],
    *,
    suite: str = "held-out",
    completion: str = "<answer>1</answer>",
    slices: Sequence[str] = ("",),
    clusters: Sequence[str] = ("",),
) -> EvalResult:
    """`slices` and `clusters` go round, item by item."""
    for number, score in enumerate(scores):
        EvalItem.objects.create(
            **_next(attempt),
            phase=phase,
            suite=suite,
            problem_id=f"held-{number}",
            prompt=f"what is {number} + 1?",
            answer=str(number + 1),
            completion=f"{phase} {number} {completion}",
            score=score,
            truncated=False,
            tokens=10,
            slice=slices[number % len(slices)],
            cluster=clusters[number % len(clusters)],
        )
    counts = {"problems": len(scores), "correct": sum(scores), "truncated": 0, "errors": 0, "mean_tokens": 10.0}
    placed = {**_next(attempt), "at": timezone.now(), "phase": phase, "suite": suite}
    attempt.save()
    return EvalResult.objects.create(**placed, **counts, seconds=1.0, protocol={"template": "{prompt}", "seed": 0})
