"""One method in a process of its own, for the comparison of methods: trains with it, or measures its first gradient.

    method_run.py train METHOD FOLDER SEED STEPS RATE      (FOLDER holds model/, train.jsonl and heldout.jsonl)
    method_run.py gradient METHOD FOLDER BATCHES

Each method has the settings of its preset, which are its paper's, but for sizes and for how far a step goes: RATE is
the learning rate, or of TRPO the trust region. The last line printed is JSON.
"""

import contextlib
import json
import math
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where Cohort is not installed

import torch
from memory_work import bytes_held, live_models, peak_mb

from grpo_core.cli.main import main as grpo
from grpo_core.config.prompt import PromptConfig
from grpo_core.config.run import ModelConfig, RunConfig
from grpo_core.data.loaders import load_problems
from grpo_core.distributed.ranks import Ranks
from grpo_core.estimate.calibrate import measured_config
from grpo_core.model.layout import completion_hidden
from grpo_core.model.load import LoadedModel, find_model, load_model
from grpo_core.model.logprobs import head_logits
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.make import make_rollout
from grpo_core.trainer.inputs import load_inputs
from grpo_core.trainer.learn import learn
from grpo_core.trainer.sampling import GroupSampler
from grpo_core.training.make import make_training
from grpo_core.training.single import SingleTraining

PROMPTS_PER_STEP, GROUP_SIZE, MAX_TOKENS, THREADS = 8, 8, 64, 2
PRESETS = {"reinforce": "reinforce", "rloo": "rloo", "grpo": "deepseekmath", "ppo": "ppo", "trpo": "trpo"}
REWARD = [
    {"name": "correct", "kind": "exact", "weight": 0.8, "params": {"extract": "answer_tag"}},
    {"name": "format", "kind": "r1_format", "weight": 0.2},
]
WARMUP_STEPS = 10
"""As the demo's: AdamW's first steps move every weight by the whole rate, whatever the gradient."""
DISTANCE_PROMPTS = 128
"""Held-out problems that the trained policy answers for its divergence from the start."""


def config(method: str, *, seed: int, steps: int, rate: float) -> dict[str, Any]:
    """The demo's task with the method's preset. PPO's critic learns at the policy's rate, as in its paper."""
    optim = {"trpo": {"max_kl": rate}} if method == "trpo" else {"lr": rate, "warmup_steps": WARMUP_STEPS}
    return {
        "preset": PRESETS[method],
        "model": {"path": "model"},
        "data": {"path": "train.jsonl"},
        "reward": {"components": REWARD},
        "sampling": {
            "group_size": GROUP_SIZE,
            "prompts_per_step": PROMPTS_PER_STEP,
            "max_completion_tokens": MAX_TOKENS,
            "temperature": 1.0,
        },
        "algorithm": {"critic": {"lr": rate}} if method == "ppo" else {},
        "optim": {**optim, "steps": steps},
        "engine": {"device": "cpu", "threads": THREADS},
        "eval": {"path": "heldout.jsonl", "before": True, "after": True, "cost": 0, "temperature": 1.0},
        "checkpoints": {"every": 1_000_000, "best": False},
        "traces": {"groups_per_step": 0},
        "seed": seed,
    }


def train(method: str, folder: Path, seed: int, steps: int, rate: float) -> dict[str, float]:
    """A run by `grpo train`, and what it reached. What is in memory is counted after the last update."""
    warm = torch.randn(256, 256, requires_grad=True)
    (warm @ warm).sum().backward()  # starts PyTorch's threads and libraries
    start, held = peak_mb(), dict[str, float]()
    update = SingleTraining.update

    def counted(self: SingleTraining, *rows: Any, step: int, **more: Any) -> Any:
        done = update(self, *rows, step=step, **more)
        if step == steps:
            roots = live_models(at_least=self._policy.parameters() // 2)
            weights = {frozenset(p.data_ptr() for p in root.parameters()): root for root in roots}
            # What the sampler made of a model's layers has some of its weights and is no other model.
            models = [root for own, root in weights.items() if not any(own < other for other in weights)]
            held.update(bytes_held(), models=len(models))
            held["trained"] = sum(any(p.requires_grad for p in root.parameters()) for root in models)
        return done

    SingleTraining.update = counted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path, out = folder / f"{Path(made).name}.json", Path(made) / "run"
        path.write_text(json.dumps(config(method, seed=seed, steps=steps, rate=rate)))  # JSON is YAML
        with contextlib.redirect_stdout(sys.stderr):
            status = grpo(["train", str(path), "--out", str(out)])
        path.unlink()
        if status != 0:
            raise SystemExit(status)
        peak = peak_mb()
        steps_of = [json.loads(line)["record"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        rewards = [step["metrics"]["reward"] for step in steps_of]
        return {
            "before": heldout_accuracy(out / "evals/before.jsonl"),
            "heldout": heldout_accuracy(out / "evals/after.jsonl"),
            "last": sum(rewards[-10:]) / len(rewards[-10:]),
            "mean": sum(rewards) / len(rewards),
            "seconds": sum(step["seconds"]["total"] for step in steps_of),
            "accepted": sum(step["metrics"].get("trpo/accepted", 0.0) for step in steps_of),
            "above": peak - start,
            **held,
            **distance(folder / "model", out / "checkpoints/final", folder / "heldout.jsonl"),
        }


def heldout_accuracy(evaluation: Path) -> float:
    """Share of the held-out problems that were right."""
    records = [json.loads(line)["record"] for line in evaluation.read_text().splitlines()]
    (result,) = [record for record in records if record["kind"] == "eval_result"]
    return float(result["correct"] / result["problems"])


@torch.no_grad()
def distance(base: Path, trained: Path, heldout: Path) -> dict[str, float]:
    """Mean KL(trained ‖ base) in nats per token, of the whole distributions, over completions of the trained policy."""
    new, old = (_load(path) for path in (trained, base))
    encoder = new.encoder(PromptConfig())
    problems = load_problems(heldout, "plain", limit=DISTANCE_PROMPTS)
    prompts = [list(encoder.encode(problem).tokens) for problem in problems]
    decoding = Decoding(max_tokens=MAX_TOKENS, temperature=1.0, top_p=1.0, top_k=0)
    groups = LocalRollout(new, max_rows=DISTANCE_PROMPTS).generate(prompts, samples=1, decoding=decoding, key=(0, 9, 1))
    completions = [list(group[0].tokens) for group in groups]
    new_NV, old_NV = (_tables(model, prompts, completions) for model in (new, old))
    return {"kl": (new_NV.exp() * (new_NV - old_NV)).sum(-1).mean().item()}


def _load(folder: Path) -> LoadedModel:
    source = find_model(ModelConfig(path=str(folder)), base=Path("/"))
    return load_model(source, dtype="float32", device=torch.device("cpu"))


def _tables(loaded: LoadedModel, prompts: list[list[int]], completions: list[list[int]]) -> torch.Tensor:
    """log π over the vocabulary at each completion token, float64."""
    hidden_ND, _ = completion_hidden(loaded.model.base_model, prompts, completions, pad_id=loaded.pad_id)
    return torch.log_softmax(head_logits(loaded.model, hidden_ND).double(), -1)


def gradient(method: str, folder: Path, batches: int) -> dict[str, float]:
    """How noisy the first gradient is: of so many independent batches of the policy before training, the trace of the
    gradient's covariance over the squared norm of its mean. A method's further updates of one batch, and what TRPO
    makes of the gradient, are left out. Both are estimated without bias: the sample covariance, and the squared norm of
    the sample mean less its own variance, trace / batches."""
    whole = config(method, seed=0, steps=batches, rate=1e-3)
    whole["algorithm"] = whole["algorithm"] | {"inner_iterations": 1}
    whole["optim"] = {"steps": batches, "method": "adamw", "max_grad_norm": 1e9, "lr": 1e-3}
    settings = measured_config(RunConfig.from_dict(whole))  # which moves no weight
    torch.set_num_threads(THREADS)
    inputs = load_inputs(settings, base=folder)
    ranks, gradients = Ranks(), list[torch.Tensor]()
    training = make_training(
        settings, inputs.policy, reference=inputs.reference, critic=inputs.critic, ranks=ranks, check=lambda: None
    )
    with contextlib.ExitStack() as opened:
        opened.enter_context(inputs.runner)
        rollout = make_rollout(
            settings,
            inputs.policy,
            ranks=ranks,
            check=lambda: None,
            positions=inputs.positions(settings),
            log=lambda text: None,
        )
        opened.enter_context(closing(rollout))
        sampler = GroupSampler(
            settings,
            inputs.train.prompts,
            rollout=rollout,
            policy=inputs.policy,
            runner=inputs.runner,
            ranks=ranks,
            check=lambda: None,
        )
        for step in range(1, batches + 1):
            learn(sampler.draw(step).kept, settings, step=step, policy=inputs.policy, training=training)
            parts = [p.grad for p in inputs.policy.model.parameters() if p.grad is not None]
            gradients.append(torch.cat([part.flatten().double() for part in parts]))
    mean_P = torch.stack(gradients).mean(0)
    trace = sum((one - mean_P).square().sum().item() for one in gradients) / (batches - 1)
    square = mean_P.square().sum().item() - trace / batches
    return {"variance": trace / square if square > 0 else math.inf, "norm": mean_P.norm().item()}


def main() -> None:
    what, method, folder, *words = sys.argv[1:]
    if what == "train":
        seed, steps, rate = int(words[0]), int(words[1]), float(words[2])
        print(json.dumps(train(method, Path(folder), seed, steps, rate)))
    else:
        print(json.dumps(gradient(method, Path(folder), int(words[0]))))


if __name__ == "__main__":
    main()
