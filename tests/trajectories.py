"""Whether the trainer still computes the same numbers: short runs of presets whose metrics, weights and optimiser
states are compared to the bit with those of another commit on the same machine (other processors round otherwise).

Uses nothing but the command `grpo`, so that it runs on either side of any move inside:

    python tests/trajectories.py before.json        # in a checkout of the one commit
    python tests/trajectories.py after.json --compare before.json
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

# One of each family: length and group norms, asymmetric clips with refills, sequence ratios, a critic, a KL term.
PRESETS: dict[str, dict[str, Any]] = {  # and what a short completion needs
    **{name: {} for name in ("deepseekmath", "dr_grpo", "gspo", "rloo", "ppo", "cispo", "reinforce_pp")},
    "dapo": {"overlong": {"buffer_tokens": 8}},
}
OF_THE_MACHINE = ("per_second", "memory", "device_utilisation", "seconds", "energy", "time")
SMALL: dict[str, Any] = {
    "model": {"path": "base"},
    "data": {"path": "data/add-train.jsonl"},
    "reward": {
        "components": [
            # Rarely equal for two completions: nearly every group carries a signal.
            {"name": "alike", "kind": "similarity", "params": {"measure": "chrf", "extract": "whole"}},
            {"name": "correct", "kind": "exact", "params": {"extract": "answer_tag"}},
        ]
    },
    "sampling": {"group_size": 8, "prompts_per_step": 4, "max_completion_tokens": 32},
    "optim": {"steps": 5, "lr": 1e-3, "warmup_steps": 0},
    "engine": {"threads": 1},
    "checkpoints": {"every": 5},  # left to itself a run cuts them by its clock
    "eval": {"before": False, "after": False},
}


def grpo(folder: Path, *words: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([Path(sys.executable).with_name("grpo"), *words], cwd=folder, env=environment, check=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_machine(value: Any) -> Any:
    """Measured times, memory and rates left out, wherever they are."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if not any(word in name for word in OF_THE_MACHINE)}
        return {name: without_machine(part) for name, part in kept.items() if name != "at"}
    return [without_machine(part) for part in value] if isinstance(value, list) else value


def trajectory(folder: Path, preset: str) -> dict[str, Any]:
    """Metrics of each step, and digests of weights and optimiser states."""
    config = {**SMALL, "preset": preset, "algorithm": {"mini_batches": 2, **PRESETS[preset]}}
    (folder / f"{preset}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    out = folder / preset
    grpo(folder, "train", f"{preset}.yaml", "--out", str(out))
    steps = lines(out / "metrics.jsonl")
    assert all(line["record"]["metrics"]["grad_norm"] > 0 for line in steps), "a step without a gradient proves nothing"
    return {
        "metrics": [without_machine(line) for line in steps],
        "files": {
            str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(out.rglob("*.safetensors"))
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the results go, as JSON")
    parser.add_argument("--compare", type=Path, help="earlier results; 1 is returned if a number differs")
    options = parser.parse_args()
    before = json.loads(options.compare.read_text(encoding="utf-8")) if options.compare else None
    with tempfile.TemporaryDirectory(prefix="trajectories-") as name:
        folder = Path(name)
        grpo(folder, "cold-start", "--out", "base", "--steps", "60", "--threads", "1")
        grpo(folder, "demo-data", "--out", "data")
        results = {preset: trajectory(folder, preset) for preset in PRESETS}
    options.out.write_text(json.dumps(results, indent=1, sort_keys=True), encoding="utf-8")
    if before is None:
        return 0
    differing = [preset for preset in PRESETS if before.get(preset) != results[preset]]
    for preset in PRESETS:
        print(f"{preset}: {'differs' if preset in differing else 'equal to the bit'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
