"""A real instruct model compared with TRL's GRPOTrainer: SmolLM2-135M-Instruct on conversations. Prints one table of
speed and memory, one of the first step, then a line per target.

    make bench-env smollm2
    .venv/bin/python benchmarks/trl_chat.py [--rounds 3] [--steps 1] [--model FOLDER] [--cases sums,words]

sums    the chat demo's work: a system message, three answered examples and a question; 8 prompts of about 110 tokens ×
        G 8; answers of about 8 tokens, at most 16
words   small word problems without examples: 4 prompts of about 70 tokens × G 8, at most 128 tokens

Both sides sample at temperature 1 and pay 1 where the last number is the answer; all weights are trained, β 0, μ 1, two
threads, fp32. Each side runs as it is shipped (benchmarks/trl.py), but for the size of micro-batches: ours hold 256 and
512 tokens, about a group; of TRL's the fastest counts.

The first step is compared number by number: prompt ids, and loss and gradient of every weight on the same completions,
which our sampler draws. The difference of the whole gradient is relative to its norm; that within the worst tensor, to
its largest element, is shown too.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE))

from sides import beside  # noqa: E402
from sides.beside import OURS, PYTHONS, TRL, Side, result  # noqa: E402
from sides.work import Work, reward  # noqa: E402

from grpo_core.advantages.base import StepScores  # noqa: E402
from grpo_core.algo.advantages import step_advantages  # noqa: E402
from grpo_core.config.run import RunConfig  # noqa: E402
from grpo_core.data.arithmetic import chat_split  # noqa: E402
from grpo_core.data.problem import Message, Problem  # noqa: E402
from grpo_core.data.prompts import PromptEncoder  # noqa: E402
from grpo_core.model.load import ModelSource, load_model  # noqa: E402
from grpo_core.rollout.base import Decoding  # noqa: E402
from grpo_core.rollout.local import LocalRollout  # noqa: E402
from grpo_core.training.base import TrainRow  # noqa: E402
from grpo_core.training.single import SingleTraining  # noqa: E402

MODEL = HERE.parent / "build/smollm2/SmolLM2-135M-Instruct"
SPEED, MEMORY, PARITY = 3.0, 0.5, 1e-5
BASE = Work(task="conversation", same=False, learning_rate=1e-6)
CASES = {
    "sums": (replace(BASE, prompts_per_step=8, max_tokens=16, engine={"micro_batch_tokens": 256}), (8, 16)),
    "words": (replace(BASE, prompts_per_step=4, max_tokens=128, engine={"micro_batch_tokens": 512}), (8,)),
}
"""Work, and TRL's micro-batches in completions; all 64 completions at once take it more than 20 GB."""
STEP_PROMPTS, STEP_GROUP = 4, 4
NAMES = ("Ada", "Bo", "Cem", "Dina", "Eva", "Finn", "Gita", "Hugo")
THINGS = ("apples", "stamps", "shells", "marbles", "pens", "coins")


@dataclass(frozen=True)
class FirstStep:
    """How far the sides are apart on one step."""

    same_ids: int
    prompts: int
    loss: float
    gradient: float
    """‖theirs − ours‖ / ‖theirs‖ over all weights."""
    worst: float
    """Largest difference within one tensor, over its largest element."""
    tensor: str
    ours_rounded: float
    """‖ours − exact‖ / ‖exact‖, exact the gradient in float64."""
    theirs_rounded: float


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=1, help="measured in each round, after one to warm up")
    options.add_argument("--model", type=Path, default=MODEL, help="folder of the instruct model")
    options.add_argument("--cases", default="sums,words", help="names from above, comma between")
    chosen = options.parse_args()
    for path in (*beside.missing(PYTHONS), *([] if chosen.model.is_dir() else [chosen.model])):
        print(f"{path} is missing; run: make bench-env smollm2", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as made:
        step = first_step(Path(made, "step"), chosen.model)
        measured = {name: both_sides(Path(made, name), name, chosen) for name in filter(None, chosen.cases.split(","))}
    for line in report(measured, step):
        print(line)
    return 0


def problems(name: str, count: int, seed: int) -> list[Problem]:
    if name == "sums":
        return chat_split(seed)[0][:count]
    draw = random.Random(seed)
    return [word_problem(draw, number) for number in range(count)]


def word_problem(draw: random.Random, number: int) -> Problem:
    (first, second), thing = draw.sample(NAMES, 2), draw.choice(THINGS)
    has, gets, gives = draw.randint(5, 30), draw.randint(2, 20), draw.randint(1, 5)
    question = (
        f"{first} has {has} {thing}. {second} gives {first} {gets} more, and then {first} gives {gives} of them away. "
        f"How many {thing} does {first} have now?"
    )
    return Problem(f"w{number}", question, str(has + gets - gives), messages=(Message("user", question),))


# ---------------------------------------------------------------------- speed and memory


def both_sides(folder: Path, name: str, chosen: argparse.Namespace) -> dict[str, Side]:
    work, micro_batches = CASES[name]
    work = replace(work, pretrained=str(chosen.model))
    beside.make(folder, work)
    rows = problems(name, (chosen.steps + 1) * work.prompts_per_step, seed=0)
    rows_given = [{"prompt": [asdict(turn) for turn in row.messages], "answer": row.answer} for row in rows]
    (folder / "problems.json").write_text(json.dumps(rows_given))
    sides = {(OURS, 0): Side(), **{(TRL, size): Side() for size in micro_batches}}
    for number in range(chosen.rounds):
        for (name_of_side, size), side in sides.items():
            seeded = replace(work, micro_batch=size, seed=number)
            side.rounds.append(beside.run(name_of_side, folder, seeded, chosen.steps, python=PYTHONS[name_of_side]))
            seconds = side.all("seconds")[-1]
            print(f"{name} round {number + 1} {name_of_side} {size or ''}: {seconds:.1f} s", file=sys.stderr)
    theirs = min((side for (which, _), side in sides.items() if which == TRL), key=lambda side: side.seconds)
    return {OURS: sides[OURS, 0], TRL: theirs}


# ---------------------------------------------------------------------- the first step


def first_step(folder: Path, model: Path) -> FirstStep:
    """Our sampler's completions, learned from once by each side."""
    folder.mkdir(parents=True)
    (folder / "model").symlink_to(model.resolve())
    torch.set_num_threads(BASE.threads)
    policy = load_model(ModelSource(model, str(model)), dtype="float32", device=torch.device("cpu"))
    config = run_config()
    encoder = PromptEncoder(policy.tokenizer, config.data)
    rows = problems("words", STEP_PROMPTS, seed=1)
    prompts = [encoder.encode(row).tokens for row in rows]
    decoding = Decoding(max_tokens=config.sampling.max_completion_tokens, temperature=1.0)
    groups = LocalRollout(policy, max_rows=512).generate(prompts, samples=STEP_GROUP, decoding=decoding, key=(1,))
    paid = [[reward(policy.tokenizer.decode(c.tokens)) for c in group] for group in groups]
    step = {
        "prompts": [[asdict(turn) for turn in row.messages] for row in rows],
        "completions": [[list(c.tokens) for c in group] for group in groups],
        "rewards": paid,
        "max_tokens": decoding.max_tokens,
    }
    (folder / "step.json").write_text(json.dumps(step))
    subprocess.run([PYTHONS[TRL], HERE / "sides/trl_chat_step.py", folder], check=True, stdout=subprocess.DEVNULL)
    theirs, gradients = json.loads((folder / "trl.json").read_text()), load_file(folder / "trl.safetensors")
    lengths_PG = torch.tensor([[len(c.tokens) for c in group] for group in groups])
    scores = StepScores(torch.tensor(paid, dtype=torch.float64), torch.ones_like(lengths_PG).bool(), lengths_PG)
    advantages = step_advantages(scores, config.algorithm)
    batch = [
        TrainRow(
            prompts[p],
            completion.tokens,
            float(advantages.advantages_PG[p, g]),
            used=True,
            group=p,
            informative=bool(advantages.informative_P[p]),
            sampler_logprobs=completion.logprobs,
            stale=False,
        )
        for p, group in enumerate(groups)
        for g, completion in enumerate(group)
    ]
    policy.model.requires_grad_(True)
    loss = SingleTraining(policy, None, config).update(batch, step=1).metrics["loss"]
    ours = {name: weight.grad for name, weight in policy.model.named_parameters()}
    policy.model.double().zero_grad()
    exact = exact_gradient(policy.model, batch, int(lengths_PG.sum()))
    apart = {name: float((grad - ours[name]).abs().max() / grad.abs().max()) for name, grad in gradients.items()}
    tensor = max(apart, key=lambda name: apart[name])
    size = sum(abs(row.advantage) * len(row.completion) for row in batch) / float(lengths_PG.sum())
    same = sum(list(mine) == ids for mine, ids in zip(prompts, theirs["ids"], strict=True))
    return FirstStep(
        same_ids=same,
        prompts=len(prompts),
        loss=abs(theirs["loss"] - loss) / size,
        gradient=distance(ours, gradients),
        worst=apart[tensor],
        tensor=tensor,
        ours_rounded=distance(ours, exact),
        theirs_rounded=distance(gradients, exact),
    )


def exact_gradient(model: Any, batch: list[TrainRow], tokens: int) -> dict[str, torch.Tensor]:
    """Of −Σ A·log π / tokens in float64, completion by completion: what the loss's gradient is at ratio 1."""
    for row in batch:
        ids = torch.tensor([[*row.prompt, *row.completion]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1]
        chosen = logits.log_softmax(-1).gather(-1, ids[0, len(row.prompt) :, None])
        (-row.advantage / tokens * chosen.sum()).backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """‖one − other‖ / ‖other‖ over all weights."""
    apart = math.fsum(float((one[name].double() - grad.double()).square().sum()) for name, grad in other.items())
    return math.sqrt(apart / math.fsum(float(grad.double().square().sum()) for grad in other.values()))


def run_config() -> RunConfig:
    return RunConfig.from_dict(
        {
            "model": {"path": "none"},
            "data": {"path": "none"},
            "reward": {"components": [{"name": "letters", "kind": "exact"}]},
            "sampling": {"group_size": STEP_GROUP, "prompts_per_step": STEP_PROMPTS, "max_completion_tokens": 48},
            "algorithm": {
                "std_ddof": 1,
                "advantage_eps": 1e-4,
                "clip_high": 0.2,
                "aggregation": "token_mean",
                "correction": {"mode": "none"},
            },
            "optim": {"lr": 1e-30, "max_grad_norm": 1e30},
            "eval": {"before": False, "after": False},
        }
    )


# ---------------------------------------------------------------------- tables


def report(measured: dict[str, dict[str, Side]], step: FirstStep) -> list[str]:
    lines = [f"{'':8} {'':11} {'s/step':>8} {'sample':>8} {'update':>8} {'samples/s':>10} {'length':>7} {'peak GB':>8}"]
    results = []
    for name, sides in measured.items():
        count = CASES[name][0].completions
        for side, figures in sides.items():
            tokens = figures.all("tokens")
            lines.append(
                f"{name:8} {side:11} {figures.seconds:8.2f} {statistics.median(figures.all('sample')):8.2f} "
                f"{statistics.median(figures.all('update')):8.2f} {count / figures.seconds:10.2f} "
                f"{sum(tokens) / len(tokens) / count:7.1f} {figures.peak:8.2f}"
            )
        ours, theirs = sides[OURS], sides[TRL]
        results += [
            result(f"chat_speed_{name}", theirs.seconds / ours.seconds, SPEED, at_least=True),
            result(f"chat_memory_{name}", ours.peak / theirs.peak, MEMORY, at_least=False),
        ]
    lines += [
        f"first step: {step.same_ids} of {step.prompts} prompts have the same ids; loss differs by {step.loss:.1e}, "
        f"the gradient by {step.gradient:.1e} of its norm, by {step.worst:.1e} at most within a tensor ({step.tensor})",
        f"from the gradient in float64 ours differs by {step.ours_rounded:.1e} of its norm, theirs by "
        f"{step.theirs_rounded:.1e}",
    ]
    held = {"ids": step.same_ids == step.prompts, "loss": step.loss <= PARITY, "gradient": step.gradient <= PARITY}
    figures: dict[str, Any] = {
        "ids": f"{step.same_ids}",
        "loss": f"{step.loss:.1e}",
        "gradient": f"{step.gradient:.1e}",
    }
    targets = {"ids": str(step.prompts), "loss": f"{PARITY:.0e}", "gradient": f"{PARITY:.0e}"}
    results += [f"RESULT chat_{n} {figures[n]} {targets[n]} {'ok' if held[n] else 'miss'}" for n in held]
    return lines + results


if __name__ == "__main__":
    sys.exit(main())
