"""Training speed, memory and arithmetic on a GPU beside TRL's GRPOTrainer with transformers' generation. Prints one
table, then a line per target. Where PyTorch sees no GPU it says so and ends well.

    .venv/bin/python benchmarks/gpu.py [--steps 2] [--prompts 4] [--max-tokens 2048] [--trl-micro-batch 8]
    .venv/bin/python benchmarks/gpu.py --tiny        (a tiny shape on the CPU, to see that it runs)

The work: a Qwen2 with the geometry of 0.5 B (hidden 896, 24 layers, 14 heads, 2 of keys, feed-forward 4,864, vocabulary
151,936, tied), random weights, bfloat16; prompts of 512 tokens, completions that end by themselves with mean 45 % of at
most 2,048, G 16, β 0, every group with variance. Both interpreters may be one (--python and --trl-python).

The update's share is its arithmetic over its time over the card's rate, which a product of two square bfloat16 matrices
of 8,192 gives on the same card just before. The arithmetic, from token counts (n tokens gone through the layers, P
weights in them, c completion tokens, V · d weights in the head, s the mean number of positions attended to):
6 n P + 12 n L d s (attention) + 6 c V d. Prompts count once a group, as the least that has to be
done; what is computed twice is not counted.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE))

from sides import beside  # noqa: E402
from sides.beside import OURS, PYTHONS, TRL, Side, result  # noqa: E402
from sides.work import SHAPES, TINY, Work  # noqa: E402

SPEED, SHARE, MEMORY = 3.0, 0.40, 1 / 3
WORK = Work(
    "qwen2-half-b", 4, 16, 2048, (512, 512), same=False, vocabulary=151_936, dtype="bfloat16", device="cuda",
    micro_batch=8, threads=8,
)  # fmt: skip
RATE = """
import sys, time, torch
device, size = sys.argv[1], int(sys.argv[2])
if device == "cuda" and not torch.cuda.is_available():
    sys.exit(3)
a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
best = 0.0
for _ in range(5):
    wait(); began = time.perf_counter()
    for _ in range(4): a @ a
    wait(); best = max(best, 4 * 2 * size**3 / (time.perf_counter() - began))
print(best, torch.cuda.get_device_name() if device == "cuda" else "CPU")
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--steps", type=int, default=2, help="measured in each round, after one to warm up")
    options.add_argument("--prompts", type=int, default=WORK.prompts_per_step, help="per step")
    options.add_argument("--max-tokens", type=int, default=WORK.max_tokens, help="longest completion")
    options.add_argument("--trl-micro-batch", type=int, default=WORK.micro_batch)
    options.add_argument("--micro-batch-tokens", type=int, default=16384, help="Cohort's")
    options.add_argument("--tiny", action="store_true", help="a tiny shape on the CPU")
    options.add_argument("--ours", action="store_true", help="Cohort alone")
    options.add_argument("--python", type=Path, default=PYTHONS[OURS], help="Cohort's interpreter")
    options.add_argument("--trl-python", type=Path, default=PYTHONS[TRL])
    chosen = options.parse_args()
    work = replace(
        WORK, prompts_per_step=chosen.prompts, max_tokens=chosen.max_tokens, micro_batch=chosen.trl_micro_batch,
        engine={"micro_batch_tokens": chosen.micro_batch_tokens},
    )  # fmt: skip
    if chosen.tiny:
        work = replace(TINY, same=False)
    pythons = {OURS: chosen.python} if chosen.ours else {OURS: chosen.python, TRL: chosen.trl_python}
    for python in beside.missing(pythons):
        print(f"{python} is missing; run: make bench-env, or give --ours", file=sys.stderr)
        return 2
    rated = subprocess.run(
        [chosen.python, "-c", RATE, work.device, "8192" if work.device == "cuda" else "256"],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if rated.returncode == 3:
        print("PyTorch sees no GPU here: nothing measured")
        return 0
    if rated.returncode != 0:
        return rated.returncode
    rate, _, card = rated.stdout.strip().partition(" ")
    sides = {side: Side() for side in pythons}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "work")
        beside.make(folder, work, chosen.python)
        for number in range(chosen.rounds):
            for side, python in pythons.items():
                told = beside.run(side, folder, replace(work, seed=number), chosen.steps, python=python)
                sides[side].rounds.append(told)
                parts = [f"{part} {statistics.median(sides[side].all(part)):.1f}" for part in ("sample", "update")]
                print(f"round {number + 1} {side}: {sides[side].seconds:.1f} s a step, {', '.join(parts)}",
                      file=sys.stderr, flush=True)  # fmt: skip
    print("\n".join(report(work, sides, float(rate), card)))
    return 0


def update_flops(work: Work, tokens: float) -> float:
    """Arithmetic of one update over `tokens` completion tokens, as the module's docstring has it."""
    shape = SHAPES[work.model]
    hidden, layers, wide = shape["hidden_size"], shape["num_hidden_layers"], shape["intermediate_size"]
    keys = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    weights = layers * hidden * (2 * hidden + 2 * keys + 3 * wide)
    prompt = sum(work.prompt_tokens) / 2
    through = tokens + prompt * work.prompts_per_step
    attended = prompt + tokens / work.completions / 2
    return 6 * through * weights + 12 * through * layers * hidden * attended + 6 * tokens * work.vocabulary * hidden


def report(work: Work, sides: dict[str, Side], rate: float, card: str) -> list[str]:
    """Table and RESULT lines."""
    lines = [
        f"{card}: {rate / 1e12:.1f} TFLOP/s in bfloat16 products",
        f"{'':11} {'s/step':>8} {'sample':>8} {'update':>8} {'samples/s':>10} {'length':>7} {'peak GB':>8} "
        f"{'of rate':>8}",
    ]
    shares = {}
    for side, one in sides.items():
        tokens, updates = one.all("tokens"), one.all("update")
        shares[side] = statistics.median(
            update_flops(work, count) / took / rate for count, took in zip(tokens, updates, strict=True)
        )
        lines.append(
            f"{side:11} {one.seconds:8.2f} {statistics.median(one.all('sample')):8.2f} "
            f"{statistics.median(updates):8.2f} {work.completions / one.seconds:10.2f} "
            f"{statistics.mean(tokens) / work.completions:7.1f} {one.peak:8.2f} {shares[side]:8.1%}"
        )
    results = [result("gpu_update_share_of_rate", shares[OURS], SHARE, at_least=True)]
    if TRL in sides:
        ours, theirs = sides[OURS], sides[TRL]
        results += [
            result("gpu_speed_against_trl", theirs.seconds / ours.seconds, SPEED, at_least=True),
            result("gpu_peak_memory_against_trl", ours.peak / theirs.peak, round(MEMORY, 4), at_least=False),
        ]
    return lines + results


if __name__ == "__main__":
    sys.exit(main())
