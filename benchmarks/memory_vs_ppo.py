"""Models and memory of PPO with a critic against GRPO, on the same model, prompts and completion lengths. Prints one
table, then a line per target.

    .venv/bin/python benchmarks/memory_vs_ppo.py [--rounds 3] [--micro-batch-tokens 512]

The work: a random Llama of 27,535,872 parameters, fp32 on the CPU, whose weights, gradients and optimiser states are
most of the process; 4 prompts of 40 tokens × 8 completions of 32 tokens, two steps, micro-batches of 512 tokens. Each
way runs in a process of its own, the ways in turn; figures are medians over the rounds.

a  PPO: policy and critic (trained), reference and reward model (frozen)
b  GRPO with a reward model: policy (trained), reference and reward model (frozen)
c  GRPO with a verifier: policy and reference
d  GRPO with a verifier and β 0: the policy alone
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from grpo_core.cli.main import OPENMP_POLICY

HERE = Path(__file__).resolve().parent
WAYS = {
    "ppo": "a PPO",
    "grpo_reward_model": "b GRPO, reward model",
    "grpo_verifier": "c GRPO, verifier",
    "grpo_verifier_no_kl": "d GRPO, verifier, β 0",
}
MODELS = {"ppo": 4, "grpo_reward_model": 3, "grpo_verifier": 2, "grpo_verifier_no_kl": 1}
"""Models that each way should need."""
CLAIM = (0.25, 0.50)
"""Share of PPO's memory that GRPO without a critic is said to save."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--micro-batch-tokens", type=int, default=512)
    chosen = options.parse_args()
    said: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_work(folder)
        for _ in range(chosen.rounds):
            for way, told in said.items():
                done = subprocess.run(
                    [sys.executable, HERE / "sides/memory_work.py", way, folder, str(chosen.micro_batch_tokens)],
                    env=os.environ | OPENMP_POLICY,  # as `grpo` sets it
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                told.append(json.loads(done.stdout.splitlines()[-1]))
    for line in report({way: medians(told) for way, told in said.items()}):
        print(line)
    return 0


def make_work(folder: Path) -> None:
    """The model and the prompts that every way loads."""
    from sides import memory_work

    from grpo_core.model.tiny import TinyShape, save_tiny

    save_tiny(folder / "model", seed=0, shape=TinyShape(hidden=512, layers=8, heads=8, feed_forward=1536))
    problems = [{"prompt": prompt, "answer": "none"} for prompt in memory_work.prompts()]
    (folder / "data.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Median of every figure; counts must be the same in all rounds."""
    for name in ("models", "trained", "parameters"):
        assert len({one[name] for one in rounds}) == 1, f"{name} differs between rounds"
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]} | {
        "above": statistics.median(one["peak"] - one["baseline"] for one in rounds)
    }


def report(figures: dict[str, dict[str, float]]) -> list[str]:
    """Table and RESULT lines; savings are shares of PPO's figure."""
    ppo = figures["ppo"]
    lines = [
        f"{'MiB':22} {'models':>6} {'trained':>7} {'weights':>8} {'grads':>8} {'optim':>8} {'sum':>8} {'saved':>6} "
        f"{'peak':>8} {'start':>8} {'above':>8} {'saved':>6} {'s/step':>7}"
    ]
    saved: dict[str, float] = {}
    for way, one in figures.items():
        held = one["weights"] + one["gradients"] + one["optimiser"]
        ppo_held = ppo["weights"] + ppo["gradients"] + ppo["optimiser"]
        saved[way] = 1 - one["above"] / ppo["above"]
        lines.append(
            f"{WAYS[way]:22} {one['models']:6.0f} {one['trained']:7.0f} {one['weights']:8.0f} {one['gradients']:8.0f} "
            f"{one['optimiser']:8.0f} {held:8.0f} {1 - held / ppo_held:6.1%} {one['peak']:8.0f} {one['baseline']:8.0f} "
            f"{one['above']:8.0f} {saved[way]:6.1%} {one['seconds']:7.1f}"
        )
    for way, models in MODELS.items():
        counted = int(figures[way]["models"])
        lines.append(f"RESULT models_{way} {counted} {models} {'ok' if counted == models else 'miss'}")
    low, high = CLAIM
    share = saved["grpo_reward_model"]
    held_to = "ok" if low <= share <= high else "miss"
    lines.append(f"RESULT memory_saved_grpo_reward_model {share:.2f} {low:.2f}-{high:.2f} {held_to}")
    for way in ("grpo_verifier", "grpo_verifier_no_kl"):
        lines.append(f"RESULT memory_saved_{way} {saved[way]:.2f} {low:.2f} {'ok' if saved[way] >= low else 'miss'}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
