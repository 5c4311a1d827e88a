"""A long run as its trainer would have reported it, and its sealing: one step of benchmarks/seal.py each, as a process
of its own so that its memory is its own.

    seal_run.py make HOME --steps N --groups N --size N     rows of a run that has ended
    seal_run.py seal HOME          prints {"seconds", "cpu", "base", "peak", "card", "bytes", "samples"}
"""

import argparse
import cProfile
import json
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent.parent / "platform")]

import django  # noqa: E402

django.setup()

from django.core.management import call_command  # noqa: E402

from cohort.accounts.services import project_create, user_create  # noqa: E402
from cohort.base import artifacts  # noqa: E402
from cohort.base.environment import environment  # noqa: E402
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create  # noqa: E402
from cohort.evidence import keys  # noqa: E402
from cohort.records.services import record_seal  # noqa: E402
from cohort.review.models import Group, Sample, StepCommitments  # noqa: E402
from cohort.runs.models import Attempt, EvalItem, EvalResult, Run, StepMetric  # noqa: E402
from grpo_core.records import commitments  # noqa: E402
from tests.factories import sealed_run  # noqa: E402

AT = datetime(2026, 11, 21, tzinfo=UTC)
ITEMS = 1000
WORDS = (
    "so",
    "the",
    "sum",
    "of",
    "both",
    "is",
    "then",
    "carried",
    "over",
    "to",
    "ten",
    "which",
    "gives",
    "answer",
    "above",
)
AT_ONCE = 5000


def make(steps: int, groups: int, size: int) -> None:
    call_command("migrate", interactive=False, verbosity=0)
    keys.generate(environment().log_name).write(environment().signing_key_path)
    folder = environment().models_folder / "tiny"
    folder.mkdir(parents=True)
    head = json.dumps({"embed": {"dtype": "F32", "shape": [6, 4], "data_offsets": [0, 96]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(96))
    (folder / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}')
    person = user_create(username="bench", password="correct horse battery")[0]
    project = project_create(slug="bench", name="bench", owner=person)
    lines = [json.dumps({"id": f"p{n}", "prompt": f"what is {n} + 7?", "answer": str(n + 7)}) for n in range(200)]
    told = {"project": project, "actor": person}
    dataset = dataset_create(
        **told, name="sums", format="plain", chunks=["\n".join([*lines, ""]).encode()], source="made here"
    )
    other = json.dumps({"prompt": "what is 1 + 1?", "answer": "2"}).encode()
    heldout = dataset_create(**told, name="held out", format="plain", chunks=[other], source="made here")
    spec = {"components": [{"name": "answer", "kind": "exact", "weight": 1.0}]}
    run = sealed_run.launch(
        **told,
        base_model=base_model_register(**told, name="tiny", path="tiny"),
        dataset=dataset,
        heldout=heldout,
        verifier_version=verifier_version_create(**told, name="exact", spec=spec),
        settings={
            "optim": {"steps": steps},
            "sampling": {"group_size": size, "prompts_per_step": groups},
        },
    )
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, [sealed_run.manifest(run)])
    rows(run, attempt, steps, groups, size)
    evaluations(run, attempt)
    sealed_run.finish(attempt)


def rows(run: Run, attempt: Attempt, steps: int, groups: int, size: int) -> None:
    chance = random.Random(0)
    for first in range(1, steps + 1, 20):
        block = range(first, min(first + 20, steps + 1))
        metrics = {"reward": 0.5, "reward_std": 0.4, "frac_reward_zero_std": 0.2, "entropy": 0.3, "loss": 0.01}
        StepMetric.objects.bulk_create(
            StepMetric(
                attempt=attempt, run=run, seq=10 * step, step=step, at=AT, metrics=metrics, seconds={"total": 3.0}
            )
            for step in block
        )
        made = Group.objects.bulk_create(
            Group(
                attempt=attempt, run=run, seq=10 * groups * step + index + 1, step=step, index=index,
                problem_id=f"p{chance.randrange(200)}", prompt="what is 12 + 7? " * 4, answer="19",
                reward_mean=0.5, reward_std=0.5, signal="mixed",
            )
            for step in block for index in range(groups)
        )  # fmt: skip
        leaves: dict[int, list[bytes]] = {step: [] for step in block}
        samples = [one for group in made for one in _samples(group, size, chance, leaves[group.step])]
        Sample.objects.bulk_create(samples, batch_size=AT_ONCE)
        StepCommitments.objects.bulk_create(
            StepCommitments(
                attempt=attempt, run=run, seq=10**7 + step, step=step, count=len(found), leaves=b"".join(found)
            )
            for step, found in leaves.items()
        )


def _samples(group: Group, size: int, chance: random.Random, leaves: list[bytes]) -> Iterator[Sample]:
    """About 300 characters each, no two alike."""
    for index in range(size):
        salt, reward = commitments.new_salt(), float(index % 2)
        text = f"<think>{' '.join(chance.choices(WORDS, k=55))}</think><answer>{chance.randrange(10**6)}</answer>"
        sample = Sample(
            group=group, run_id=group.run_id, attempt_id=group.attempt_id, step=group.step, index=index,
            completion=text, tokens=80, finish_reason="eos", reward=reward,
            components={"answer": {"value": reward, "passed": bool(index % 2), "detail": "19", "seconds": 0.0001}},
            advantage=1.0 if index % 2 else -1.0, logprob_mean=-0.5, salt=salt.hex(),
        )  # fmt: skip
        content = {
            "step": group.step, "group": group.index, "sample": index, "problem_id": group.problem_id,
            "prompt": group.prompt, "completion": text, "tokens": 80, "finish_reason": "eos", "reward": reward,
            "advantage": sample.advantage,
        }  # fmt: skip
        leaves.append(commitments.leaf(salt, content))
        yield sample


def evaluations(run: Run, attempt: Attempt) -> None:
    for number, (phase, right) in enumerate((("before", 300), ("after", 800))):
        seq = 2 * 10**7 + number * 10 * ITEMS
        items = (
            EvalItem(
                attempt=attempt, run=run, seq=seq + n, phase=phase, suite="heldout", problem_id=f"p{n}",
                prompt=f"what is {n} + 7?", answer=str(n + 7), completion=" ".join(WORDS * 3),
                score=float(n < right), truncated=False, tokens=60,
            )
            for n in range(ITEMS)
        )  # fmt: skip
        while some := list(islice(items, AT_ONCE)):
            EvalItem.objects.bulk_create(some)
        EvalResult.objects.create(
            attempt=attempt, run=run, seq=seq + ITEMS, at=AT, phase=phase, suite="heldout", problems=ITEMS,
            correct=right, truncated=0, errors=0, mean_tokens=60.0, seconds=9.0, protocol=sealed_run.PROTOCOL,
        )  # fmt: skip


def seal(home: Path) -> None:
    run = Run.objects.get()
    base = _memory("VmRSS")
    begun, cpu = time.perf_counter(), time.process_time()
    record = record_seal(run=run)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    card = record.card()
    target = home / "internal.zip"
    with target.open("wb") as handle:
        for chunk in artifacts.read_chunks(card.artifact):
            handle.write(chunk)
    told = {"seconds": seconds, "cpu": cpu, "base": base, "peak": _memory("VmHWM")}
    print(json.dumps(told | {"card": str(target), "bytes": card.size, "samples": Sample.objects.count()}))


def _memory(name: str) -> float:
    """MB of this process, by the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("what", choices=["make", "seal"])
    options.add_argument("home", type=Path)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--groups", type=int, default=10)
    options.add_argument("--size", type=int, default=10)
    chosen = options.parse_args()
    if chosen.what == "make":
        make(chosen.steps, chosen.groups, chosen.size)
    elif profile := os.environ.get("SEAL_PROFILE"):  # a file for pstats
        cProfile.runctx("seal(chosen.home)", globals(), {"chosen": chosen}, profile)
    else:
        seal(chosen.home)


if __name__ == "__main__":
    main()
