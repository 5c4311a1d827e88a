"""Cohort's side: `grpo train` as it is, with the benchmark's reward in the place of one kind's rule.

    cohort_grpo.py FOLDER STEPS [--profile]     (FOLDER: model/ and work.json; so many steps are measured after one to
                                                 warm up)

Everything that a run does between its steps is in the time: scoring, records, the readable files and their commit. The
last line printed is JSON, a figure for each measured step: seconds by phase, tokens, mean reward. With --profile the
last step is looked into and its shares are printed as well (see profiled.py); its seconds are not to be compared.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where Cohort is not installed

import torch
import work

from grpo_core.cli.main import main as grpo
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.kinds.exact import ExactParams
from grpo_core.rewards.registry import KINDS, Kind
from grpo_core.trainer.sampling import prompt_order


@dataclass(frozen=True)
class Benchmarked(Kind):
    """A kind whose rule is the benchmark's."""

    task: str = "letters"

    def rule(self) -> Callable[[ScoreRequest, Any], ComponentScore]:
        def score(sample: ScoreRequest, params: Any) -> ComponentScore:
            problem = sample.problem
            paid = work.reward(sample.completion, problem.prompt, problem.answer, self.task)
            return ComponentScore(value=paid, passed=paid == 1.0, detail="")

        return score


def in_order_of_drawing(problems: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The problems laid out so that the trainer, which shuffles them, draws them in the order given."""
    order = islice(prompt_order(len(problems), seed), len(problems))
    return [problem for _, problem in sorted(zip(order, problems, strict=True), key=lambda pair: pair[0])]


def config(job: work.Work, folder: Path, steps: int) -> dict[str, Any]:
    """The run's config. Groups are normalised and the two sides of the clip stand as in TRL."""
    return {
        "model": {"path": str(folder / "model"), "dtype": job.dtype},
        "data": {"path": "data.jsonl", "max_prompt_tokens": 4096},
        "reward": {"components": [{"name": "letters", "kind": "exact"}]},
        "sampling": {
            "group_size": job.group_size,
            "prompts_per_step": job.prompts_per_step,
            "max_completion_tokens": job.max_tokens,
        },
        "algorithm": {"std_ddof": 1, "kl": {"coef": job.beta}, "clip_high": job.clip_high},
        "optim": {"lr": job.learning_rate, "steps": steps},
        "engine": {"device": job.device, "threads": job.threads, **(job.engine or {})},
        "eval": {"before": False, "after": False},
        "checkpoints": {"every": 1_000_000, "final": False},
        "seed": job.seed,
    }


def train(job: work.Work, folder: Path, steps: int, begin: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Metrics records of all steps. `begin` is called when all is read and about to start."""
    KINDS["exact"] = Benchmarked(
        "exact", ExactParams, "the benchmark's reward", module="grpo_core.rewards.kinds.exact", task=job.task
    )
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        problems = in_order_of_drawing(work.problems_of(job, folder, steps), job.seed)
        (scratch / "data.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
        (scratch / "config.yaml").write_text(json.dumps(config(job, folder, steps)))  # JSON is YAML
        begin()
        with contextlib.redirect_stdout(sys.stderr):
            status = grpo(["train", str(scratch / "config.yaml"), "--out", str(scratch / "run")])
        if status != 0:
            raise SystemExit(status)
        lines = (scratch / "run/metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["record"] for line in lines]


def told(records: Sequence[dict[str, Any]], job: work.Work) -> dict[str, Any]:
    """Figures of the measured steps, as TRL's side tells them."""
    parts: dict[str, list[float]] = {}
    for record in records:
        for name, value in record["seconds"].items():
            parts.setdefault("seconds" if name == "total" else name, []).append(value)
    return {
        **parts,
        "tokens": [record["metrics"]["completions/mean_length"] * job.completions for record in records],
        "reward": [record["metrics"]["reward"] for record in records],
        "same": [record["metrics"]["frac_reward_zero_std"] for record in records],
        "peak_rss_gb": work.peak_rss_gb(),
        "peak_device_gb": torch.cuda.max_memory_allocated() / 2**30 if job.device == "cuda" else 0.0,
    }


def main() -> None:
    folder, steps, profile = Path(sys.argv[1]), int(sys.argv[2]), "--profile" in sys.argv[3:]
    job = work.Work.load(folder)
    if not profile:
        first, *others = train(job, folder, steps + 1)
        print(json.dumps(told(others, job) | {"first_reward": first["metrics"]["reward"]}))
        return
    import profiled

    with profiled.last_step(steps + 1, job.vocabulary) as shares:
        records = train(job, folder, steps + 1)
    for line in shares:
        print(line)
    print(json.dumps(told(records[1:], job)))


if __name__ == "__main__":
    main()
