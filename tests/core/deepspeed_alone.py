"""Run by test_deepspeed.py in DeepSpeed's environment, one process: what only shows inside. Prints one line of JSON.

Arguments: a folder with a tiny model, the stage of ZeRO.
"""

import json
import math
import sys
from pathlib import Path

import torch

from grpo_core.distributed.ranks import Ranks
from grpo_core.training.deepspeed import DeepSpeedWeights
from grpo_core.training.logprob_pass import policy_terms
from tests.core.tiny import config, load

folder, stage = Path(sys.argv[1]), int(sys.argv[2])
policy = load(folder)
chosen = {"training": "deepspeed", "deepspeed": {"zero_stage": stage}}
settings = config(engine=chosen, optim={"steps": 1, "lr": 0.01, "max_grad_norm": 0.5})
before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
ranks = Ranks()
weights = DeepSpeedWeights(policy, settings, ranks=ranks)
report: dict[str, object] = {"moments_before": len(weights.moments())}


def moved() -> bool:
    return any((value != before[name]).any() for name, value in weights.exact().items())


def logprobs() -> torch.Tensor:
    return policy_terms(policy, settings, [[40, 41]], [[50, 51, 52]], entropy=False).logprobs_N


def update(scale: float) -> float:
    weights.zero_gradients(2)
    for _ in range(2):
        weights.backward(weights.forward(lambda: logprobs().sum() * scale))
    return weights.finish(settings.optim.max_grad_norm)


report["moved_by_opening"] = moved()
weights.set_rate(0.01)
report["norm"] = update(1.0)
weights.step()
report["norm_of_deepspeed"] = float(weights._engine.get_global_grad_norm())
report["moved_by_step"] = moved()
report["moments_after"] = len(weights.moments())
report["steps"] = sorted({float(value) for name, value in weights.moments().items() if name.endswith(".step")})
with weights.whole():
    report["sizes_inside"] = [list(weight.shape) for weight in policy.model.parameters()] == [
        list(weight.shape) for weight in before.values()
    ]
    newest = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    torch.manual_seed(0)
    policy.model(input_ids=torch.tensor([[1, 2, 3]]))
    report["still_whole_after_a_call"] = all(weight.numel() for weight in policy.model.parameters())
report["newest_inside"] = all((newest[name] == value).all().item() for name, value in weights.exact().items())
report["norm_of_no_number"] = math.isnan(update(float("nan")))
ranks.leave()
print(json.dumps(report))
