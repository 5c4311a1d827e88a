"""Training speed and memory beside TRL's GRPOTrainer: the same model, prompts, completion lengths, reward and settings,
in turn on this machine. Prints one table, then a line per target.

    make bench-env && .venv/bin/python benchmarks/trl.py [--rounds 3] [--steps 4]

The work: a random Llama of 919,168 parameters with a byte vocabulary; 16 prompts of 38 to 60 bytes (22 lengths) × G 8,
at most 128 tokens, ended by the model's own end token; fp32, μ 1, β 0; a reward that differs inside nearly every group,
so that no side may skip any. Each side runs as it is shipped: Cohort's threads sleep while they wait, as `grpo` has it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIDES = {
    "Cohort": (HERE.parent / ".venv/bin/python", HERE / "sides/cohort_grpo.py"),
    "TRL 1.16.0": (HERE.parent / ".venv-bench/bin/python", HERE / "sides/trl_grpo.py"),
}
SHIPPED = {"Cohort": {"OMP_WAIT_POLICY": "PASSIVE"}, "TRL 1.16.0": {}}
"""What a side's own command sets before torch is loaded, unless the variable is set already."""
SPEEDUP = 1.0
"""Target of this release: not slower where all completions are about as long as each other."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=4, help="measured steps in each round, after one to warm up")
    chosen = options.parse_args()
    for python, _ in SIDES.values():
        if not python.is_file():
            print(f"{python} is missing; run: make bench-env", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        subprocess.run([SIDES["Cohort"][0], HERE / "sides/make_model.py", model], check=True)
        seconds: dict[str, list[float]] = {name: [] for name in SIDES}
        peak: dict[str, float] = dict.fromkeys(SIDES, 0.0)
        tokens: dict[str, list[float]] = {name: [] for name in SIDES}
        for _ in range(chosen.rounds):
            for name, (python, script) in SIDES.items():
                done = subprocess.run(
                    [python, script, model, str(chosen.steps)],
                    env=SHIPPED[name] | os.environ,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                said = json.loads(done.stdout.splitlines()[-1])
                seconds[name] += said["seconds"]
                tokens[name] += said["tokens"]
                peak[name] = max(peak[name], said["peak_rss_gb"])
    print(f"{'':12} {'s/step':>8} {'fastest':>8} {'tokens/s':>9} {'length':>7} {'peak GB':>8}")
    rate = {}
    for name in SIDES:
        median = statistics.median(seconds[name])
        mean_tokens = statistics.mean(tokens[name])
        rate[name] = sum(tokens[name]) / sum(seconds[name])
        length = mean_tokens / 128
        print(f"{name:12} {median:8.2f} {min(seconds[name]):8.2f} {rate[name]:9.0f} {length:7.1f} {peak[name]:8.2f}")
    ours, theirs = SIDES
    speedup, memory = rate[ours] / rate[theirs], peak[ours] / peak[theirs]
    print(f"RESULT tokens_per_second_against_trl {speedup:.2f} {SPEEDUP} {'ok' if speedup >= SPEEDUP else 'miss'}")
    print(f"RESULT peak_memory_against_trl {memory:.2f} 1.0 {'ok' if memory <= 1 else 'miss'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
