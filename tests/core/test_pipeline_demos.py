"""The two pipelines that run whole on a laptop, as `grpo pipeline presets` prints them: R1's stages, and three rounds
of iterative GRPO. Each stage's manifest must begin from what the stage before it gave, file by file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.evaluate.text_report import mean_score, measured_in
from grpo_core.files.checkpoint import read_manifest
from grpo_core.pipeline.presets import pipeline_preset
from tests.processes import clean_environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines")
    for name, more in (("base", ()), ("weak", ("--steps", "105")), ("small", ("--layers", "1"))):
        grpo("cold-start", "--out", str(folder / name), "--threads", "1", *more)
    grpo("demo-data", "--worked", "200", "--out", str(folder / "data"))
    return folder


def grpo(*words: str) -> None:
    command = [sys.executable, "-P", "-m", "grpo_core.cli.main", *words]
    done = subprocess.run(command, env=clean_environment("GRPO_"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def run_preset(home: Path, name: str, **models: str) -> Path:
    """Runs the preset with these models in place of its own; returns the pipeline's folder."""
    text = pipeline_preset(name).text
    for placeholder, model in models.items():
        text = text.replace(f"{{path: {placeholder}}}", f"{{path: {model}}}")
    file = home / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    grpo("pipeline", "run", str(file), "--out", str(home / name))
    return home / name


def manifest(folder: Path, stage: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / stage / "run/manifest.json").read_text(encoding="utf-8"))
    return content


def final_weights(folder: Path, stage: str) -> dict[str, str]:
    """SHA-256 of each file of weights that the stage gave."""
    files = read_manifest(folder / stage / "run/checkpoints/final").files
    return {name: entry.sha256 for name, entry in files.items() if name.endswith(".safetensors")}


def begins_from(folder: Path, stage: str) -> dict[str, str]:
    weights: dict[str, str] = manifest(folder, stage)["model"]["weights"]
    return weights


def share_right(folder: Path, stage: str, phase: str) -> float:
    (measured,) = measured_in(folder / stage / f"run/evals/{phase}.jsonl")
    score = mean_score(measured.items)
    assert score is not None
    return score


def test_the_stages_of_r1(home: Path) -> None:
    folder = run_preset(home, "r1-demo", base="weak")
    for stage, earlier in (("rl", "cold_start"), ("judge", "fine_tuning"), ("rl_again", "fine_tuning")):
        assert begins_from(folder, stage) == final_weights(folder, earlier)
    for sampled, policy in (("rejection", "rl"), ("pairs", "rl"), ("answers", "rl_again")):
        assert begins_from(folder, sampled) == final_weights(folder, policy)
    assert begins_from(folder, "fine_tuning") == begins_from(folder, "cold_start")  # on the base, as in the paper
    assert begins_from(folder, "student") != begins_from(folder, "cold_start")
    rows = json.loads((folder / "answers/run/dataset/dataset.json").read_text(encoding="utf-8"))
    assert manifest(folder, "student")["data"]["train"]["sha256"] == rows["sha256"]
    judged = manifest(folder, "rl_again")["reward"]["judged"]
    assert judged["weights"] == final_weights(folder, "judge")
    # What RL added to either fine-tuning, and what the student took over.
    assert share_right(folder, "rl_again", "after") > share_right(folder, "cold_start", "before") + 0.05
    assert share_right(folder, "student", "after") > share_right(folder, "student", "before")


def test_three_rounds_of_iterative_grpo(home: Path) -> None:
    folder = run_preset(home, "iterative-demo")
    references = [begins_from(folder, f"policy_{number}") for number in (1, 2, 3)]
    assert references[0] == begins_from(folder, "samples_1")
    assert references[1] == final_weights(folder, "policy_1") == begins_from(folder, "samples_2")
    assert references[2] == final_weights(folder, "policy_2") == begins_from(folder, "samples_3")
    assert len({json.dumps(weights, sort_keys=True) for weights in references}) == 3
    for number in (1, 2, 3):
        judge = manifest(folder, f"judge_{number}")
        assert manifest(folder, f"policy_{number}")["reward"]["judged"]["weights"] == final_weights(
            folder, f"judge_{number}"
        )
        if number == 1:
            assert "replay" not in judge["data"]["train"]
        else:
            before = json.loads((folder / f"samples_{number - 1}/run/dataset/dataset.json").read_text("utf-8"))
            assert judge["data"]["train"]["replay"]["share"] == 0.1
            assert judge["data"]["train"]["replay"]["sha256"] == before["sha256"]
            assert begins_from(folder, f"judge_{number}") == final_weights(folder, f"judge_{number - 1}")
