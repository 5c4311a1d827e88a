"""How a step's cost grows: time of a sample and peak memory over group sizes, prompts per step, vocabularies and
lengths. Cohort alone, each size in a process of its own. Prints one table, then a line per target.

    .venv/bin/python benchmarks/engine_growth.py [--rounds 3] [--axes group,prompts,vocabulary,length] [--few]

group       G 4 to 64 at 8 prompts: time of a sample and peak memory
prompts     4 to 64 prompts at G 8: the same
vocabulary  8,192 to 65,536 entries: peak memory beyond the weights, their gradients and the optimiser's moments
length      at most 128 to 512 tokens: peak memory

The model and the lengths' distribution are those of benchmarks/trl.py's reference work at β 0, with every group with
variance, so that every sample is learned from. Time of a sample may fall with the size but not grow by more than 10 %
over the smallest. Memory is held to the same after what must grow with the size is taken off: sixteen bytes a weight
(weight, gradient, two moments). The sampler's keys and values are bounded by engine.rollout_tokens, a micro-batch by
engine.micro_batch_tokens; the budgets here are such that the smallest work fills them (BUDGETS).
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE))

from sides import beside  # noqa: E402
from sides.beside import OURS, Side  # noqa: E402
from sides.work import REFERENCE, SHAPES, TINY, Work  # noqa: E402

GROWTH = 1.10
BUDGETS = {"rollout_batch": 32, "rollout_tokens": 8192, "micro_batch_tokens": 2048}
AXES: dict[str, tuple[tuple[int, ...], Callable[[Work, int], Work]]] = {
    "group": ((4, 8, 16, 32, 64), lambda work, size: replace(work, group_size=size)),
    "prompts": ((4, 8, 16, 32, 64), lambda work, size: replace(work, prompts_per_step=size)),
    "vocabulary": ((8192, 16384, 32768, 65536), lambda work, size: replace(work, vocabulary=size)),
    "length": ((128, 256, 512), lambda work, size: replace(work, max_tokens=size)),
}
TIMED = ("group", "prompts")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=1, help="measured in each round, after one to warm up")
    options.add_argument("--axes", default=",".join(AXES))
    options.add_argument("--few", action="store_true", help="of each axis the smallest, middle and largest size")
    options.add_argument("--small", action="store_true", help="a tiny model and the two smallest sizes, for a test")
    chosen = options.parse_args()
    base = replace(TINY if chosen.small else REFERENCE, same=False, engine=BUDGETS)
    told: dict[str, dict[int, Side]] = {}
    works: dict[tuple[str, int], Work] = {}
    with tempfile.TemporaryDirectory() as made:
        for axis in chosen.axes.split(","):
            sizes, of = AXES[axis]
            if chosen.small or chosen.few:
                sizes = sizes[:2] if chosen.small else (sizes[0], sizes[len(sizes) // 2], sizes[-1])
            told[axis] = {size: Side() for size in sizes}
            for size in told[axis]:
                works[axis, size] = of(base, size)
                beside.make(Path(made, f"{axis}-{size}"), works[axis, size], Path(sys.executable))
            for number in range(chosen.rounds):
                for size, side in told[axis].items():  # in turn, so that what the machine does hits all sizes alike
                    work = replace(works[axis, size], seed=number)
                    folder = Path(made, f"{axis}-{size}")
                    side.rounds.append(beside.run(OURS, folder, work, chosen.steps, python=Path(sys.executable)))
                    print(f"{axis} {size} round {number + 1}: {side.seconds:.2f} s/step", file=sys.stderr, flush=True)
    print("\n".join(report(told, works)))
    return 0


def parameters(work: Work) -> int:
    """Weights of the benchmark's Qwen2, its embeddings tied."""
    shape = SHAPES[work.model]
    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    keys = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    layer = hidden * (2 * hidden + 2 * keys + 3 * wide + 2) + hidden + 2 * keys
    return work.vocabulary * hidden + shape["num_hidden_layers"] * layer + hidden


def report(told: dict[str, dict[int, Side]], works: dict[tuple[str, int], Work]) -> list[str]:
    """Table and RESULT lines: the worst size of an axis against its smallest."""
    lines = [f"{'':10} {'size':>7} {'s/step':>8} {'ms/sample':>10} {'ms/token':>9} {'length':>7} {'GB':>6} {'less':>6}"]
    results = []
    for axis, sides in told.items():
        sample, memory = {}, {}
        for size, side in sides.items():
            work = works[axis, size]
            held = 16 * parameters(work) / 2**30
            sample[size], memory[size] = side.seconds / work.completions, side.peak - held
            tokens = statistics.mean(side.all("tokens"))
            lines.append(
                f"{axis:10} {size:7} {side.seconds:8.2f} {1000 * sample[size]:10.1f} "
                f"{1000 * side.seconds / tokens:9.3f} {tokens / work.completions:7.1f} {side.peak:6.2f} "
                f"{memory[size]:6.2f}"
            )
        first = min(sides)
        figures = {"peak_memory": memory} | ({"sample_time": sample} if axis in TIMED else {})
        for name, by_size in figures.items():
            worst = max(by_size[size] / by_size[first] for size in sides)
            results.append(beside.result(f"growth_{name}_by_{axis}", worst, GROWTH, at_least=False))
    return lines + results


if __name__ == "__main__":
    sys.exit(main())
