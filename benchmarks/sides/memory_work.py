"""One way of training, in a process of its own, for the memory comparison: loads the models that it needs, takes two
steps on the same prompts with completions of the same length, and says what was in memory.

    memory_work.py WAY FOLDER TOKENS     (WAY: a key of WAYS; FOLDER holds the model and data.jsonl; TOKENS: of a
                                          micro-batch)

Models are loaded by `load_inputs`, as for a run, so it is the config that decides how many there are. The reward model
is no reward kind of Cohort's: it is held here, frozen, a transformers sequence classifier with the same backbone.
"""

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from grpo_core.advantages.base import StepScores
from grpo_core.algo.advantages import step_advantages
from grpo_core.algo.kl import kl_estimate
from grpo_core.config.run import RunConfig
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.trainer.inputs import load_inputs
from grpo_core.training.base import TrainRow
from grpo_core.training.single import SingleTraining

PROMPTS_PER_STEP, GROUP_SIZE, MAX_TOKENS, STEPS = 4, 8, 32, 2
BETA = 0.04
WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "ppo": ({"advantage": "gae", "scale": "none", "kl": {"coef": BETA, "place": "reward"}}, True),
    "grpo_reward_model": ({"kl": {"coef": BETA}}, True),
    "grpo_verifier": ({"kl": {"coef": BETA}}, False),
    "grpo_verifier_no_kl": ({"kl": {"coef": 0.0}}, False),
}
"""Algorithm, and whether a reward model scores the completions."""


def prompts() -> list[str]:
    """Prompts of 40 bytes, so that every way has the same tokens to work on."""
    return [f"problem {n}: what is {n * 37 % 991} plus {n * 53 % 997}? ".ljust(40) for n in range(PROMPTS_PER_STEP)]


def config() -> RunConfig:
    algorithm, _ = WAYS[sys.argv[1]]
    return RunConfig.from_dict(
        {
            "model": {"path": "model"},
            "data": {"path": "data.jsonl"},
            "reward": {"components": [{"name": "none", "kind": "exact"}]},
            "sampling": {
                "group_size": GROUP_SIZE,
                "prompts_per_step": PROMPTS_PER_STEP,
                "max_completion_tokens": MAX_TOKENS,
            },
            "algorithm": {**algorithm, "correction": {"mode": "none"}},
            "optim": {"lr": 1e-6, "steps": STEPS},
            "engine": {"device": "cpu", "micro_batch_tokens": int(sys.argv[3])},
            "eval": {"before": False, "after": False},
        }
    )


def peak_mb() -> float:
    """Most memory the process ever had, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def live_models(at_least: int) -> list[nn.Module]:
    """Modules alive in this process that are part of no other and have `at_least` so many weights."""
    modules = [one for one in gc.get_objects() if _is(one, nn.Module)]
    inside = {id(child) for one in modules for child in one.children()}
    roots = [one for one in modules if id(one) not in inside]
    return [one for one in roots if sum(p.numel() for p in one.parameters()) >= at_least]


def _is(one: object, kind: type) -> bool:
    """isinstance without asking the object itself: some objects alive warn when they are asked."""
    return issubclass(type(one), kind)


def bytes_held() -> dict[str, float]:
    """MiB of weights, gradients and optimiser states alive in this process, each tensor counted once."""
    weights = {p.data_ptr(): p for one in gc.get_objects() if _is(one, nn.Module) for p in one.parameters()}
    states = {
        tensor.data_ptr(): tensor
        for one in gc.get_objects()
        if _is(one, torch.optim.Optimizer)
        for state in one.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor)
    }
    sizes = {
        "weights": sum(p.nbytes for p in weights.values()),
        "gradients": sum(p.grad.nbytes for p in weights.values() if p.grad is not None),
        "optimiser": sum(tensor.nbytes for tensor in states.values()),
    }
    return {name: size / 2**20 for name, size in sizes.items()}


def main() -> None:
    settings = config()
    _, scored_by_model = WAYS[sys.argv[1]]
    folder = Path(sys.argv[2])
    warm = torch.randn(256, 256, requires_grad=True)
    (warm @ warm).sum().backward()  # starts PyTorch's threads and libraries
    baseline = peak_mb()

    inputs = load_inputs(settings, base=folder)
    policy = inputs.policy
    policy.eos_ids = frozenset()  # every completion is as long as the limit
    judge: Any = None
    if scored_by_model:
        transformers_logging.set_verbosity_error()  # it would report at length that the head is new
        judge = AutoModelForSequenceClassification.from_pretrained(folder / "model", num_labels=1).eval()
        judge.requires_grad_(False)
    rollout = LocalRollout(policy, max_rows=settings.engine.rollout_batch)
    training = SingleTraining(policy, inputs.reference, settings, critic=inputs.critic)
    decoding = Decoding(max_tokens=MAX_TOKENS, temperature=1.0, top_p=1.0, top_k=0)
    began = time.perf_counter()
    for step in range(1, STEPS + 1):
        one_step(settings, inputs, judge, rollout, training, decoding, step)
    seconds = (time.perf_counter() - began) / STEPS

    models = live_models(at_least=policy.parameters() // 2)
    said = {
        "models": len(models),
        "trained": sum(any(p.requires_grad for p in one.parameters()) for one in models),
        "parameters": policy.parameters(),
        "baseline": baseline,
        "peak": peak_mb(),
        "seconds": seconds,
        **bytes_held(),
    }
    print(json.dumps(said))


def one_step(
    settings: RunConfig, inputs: Any, judge: Any, rollout: Any, training: Any, decoding: Decoding, step: int
) -> None:
    """Sample, score, compare, learn: the trainer's own parts in the trainer's own order."""
    encoded = [list(prompt.tokens) for prompt in inputs.train.prompts]
    groups = rollout.generate(encoded, samples=GROUP_SIZE, decoding=decoding, key=(0, 1, step))
    completions = [[one.tokens for one in group] for group in groups]
    rewards = torch.tensor([reward(judge, prompt, ids) for prompt, ids in zip(encoded, completions, strict=True)])

    def rows(advantages: Any) -> list[TrainRow]:
        return [
            TrainRow(prompt, tokens, advantages[p][g], used=True, group=p)
            for p, (prompt, group) in enumerate(zip(encoded, completions, strict=True))
            for g, tokens in enumerate(group)
        ]

    scores = {
        "rewards_PG": rewards.double(),
        "scored_PG": torch.ones_like(rewards, dtype=torch.bool),
        "lengths_PG": torch.full(rewards.shape, MAX_TOKENS),
    }
    algorithm = settings.algorithm
    if inputs.critic is None:
        told = step_advantages(StepScores(**scores), algorithm)
        training.update(rows(told.advantages_PG.tolist()), step=step)
        return
    measured = training.measure(rows([[0.0] * GROUP_SIZE] * len(encoded)))
    places = [[p * GROUP_SIZE + g for g in range(GROUP_SIZE)] for p in range(len(encoded))]
    told = step_advantages(
        StepScores(
            **scores,
            token_penalties=[
                [
                    BETA * kl_estimate(measured.old[i].double(), measured.reference[i].double(), algorithm.kl.estimator)
                    for i in group
                ]
                for group in places
            ],
            values=[[measured.values[i].double() for i in group] for group in places],
        ),
        algorithm,
    )
    assert told.tokens is not None
    assert told.returns is not None
    returns = [one.tolist() for group in told.returns for one in group]
    training.update(rows([[one.tolist() for one in group] for group in told.tokens]), step=step, returns=returns)


@torch.no_grad()
def reward(judge: Any, prompt: list[int], completions: list[tuple[int, ...]]) -> list[float]:
    """The reward model's score, or a verifier's: the share of even tokens, which differs inside nearly every group."""
    if judge is None:
        return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completions]
    ids_BT = torch.tensor([[*prompt, *ids] for ids in completions])
    return judge(input_ids=ids_BT).logits[:, 0].tolist()


if __name__ == "__main__":
    main()
