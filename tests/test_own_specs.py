"""An advantage estimator, a loss and a reward kind are each one file: those of tests/own, added to a copy of
grpo_core, are accepted, trained with, offered by the form and named by the record."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.core.tiny import config, tiny_folder
from tests.processes import clean_environment

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"advantages": "advantages", "losses": "losses", "kinds": "rewards/kinds"}
"""Of tests/own → where its files go in grpo_core."""
CHOSEN: dict[str, Any] = {
    "algorithm": {"advantage": "halved", "scale": "none", "loss": "plain"},
    "reward": {"components": [{"name": "many", "kind": "digits", "params": {"most": 2}}]},
}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of grpo_core with the three files added."""
    folder = tmp_path_factory.mktemp("product")
    shutil.copytree(ROOT / "grpo_core", folder / "grpo_core", ignore=shutil.ignore_patterns("__pycache__"))
    for own, place in FOLDERS.items():
        shutil.copytree(ROOT / "tests/own" / own, folder / "grpo_core" / place, dirs_exist_ok=True)
    return folder


def run(product: Path, code: str, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=clean_environment() | {"PYTHONPATH": f"{product}{os.pathsep}{ROOT / 'platform'}"} | environment,
        cwd=product,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_is_trained_with_them(product: Path, tmp_path: Path) -> None:
    tiny_folder(tmp_path / "base")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 4, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**config().to_dict(), **CHOSEN}), encoding="utf-8")
    run(
        product,
        "import sys; from grpo_core.cli.main import main; sys.exit(main(sys.argv[1:]))",
        *("train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")),
    )
    lines = (tmp_path / "out/samples/step-000001.jsonl").read_text(encoding="utf-8").splitlines()
    groups = [json.loads(line)["record"] for line in lines]
    assert any(group["signal"] == "mixed" for group in groups)
    for group in groups:
        for sample in group["samples"]:
            digits = sum(letter.isdigit() for letter in sample["completion"])
            assert abs(sample["reward"] - 2 * digits / max(1, len(sample["completion"]))) < 1e-9
            assert abs(sample["advantage"] - (sample["reward"] - group["reward_mean"]) / 2) < 1e-9


def test_form_group_page_and_record_have_their_words(product: Path, tmp_path: Path) -> None:
    told = json.loads(
        run(
            product,
            f"""
import json, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "cohort.settings"
import django; django.setup()
from cohort.web.catalog.reward_form import kind_choices, param_specs
from cohort.records.sections import method_text as method_words
from cohort.web.review.arithmetic import derive
from cohort.web.launch.schema import fields
from cohort.web.launch.variants import offered, variant_of
from grpo_core.advantages.base import GroupScores
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.run import RunConfig
algorithm = AlgorithmConfig.model_validate({CHOSEN["algorithm"]!r})
config = RunConfig.from_dict({config().to_dict() | CHOSEN!r})
assert not {{"torch", "numpy"}} & set(sys.modules)
print(json.dumps({{
    "losses": fields()["algorithm.loss"].choices,
    "normalizations": [variant.label for _, variant in offered("")],
    "kinds": [label for _, kinds in kind_choices() for _, label in kinds],
    "parameters": [spec.path for spec in param_specs("digits")],
    "method": method_words.training_method(config),
    "loss": method_words.loss(algorithm),
    "normalization": method_words.normalization(algorithm),
    "clipping": method_words.clipping(algorithm),
    "derived": derive(GroupScores([1.0, 0.0]), variant_of(algorithm), algorithm).parts,
    "schema": json.dumps(RunConfig.model_json_schema()),
}}))
""",
            COHORT_MODE="test",
            COHORT_HOME=str(tmp_path),
            COHORT_DATABASE_URL="postgresql:///none",
        )
    )
    assert "plain" in told["losses"]
    assert "half of mean only" in told["normalizations"]
    assert "digits: digits, whichever they are" in told["kinds"]
    assert told["parameters"] == ["most"]
    assert told["method"] == ["Halved", "policy gradient with halved advantages (Halved), with the loss plain"]
    assert told["loss"].startswith("unclipped ratio of each token; ")
    assert told["normalization"] == "half of the reward minus the group's mean"
    assert told["clipping"] == "none: nothing is clipped"
    assert told["derived"] == ["r = [1, 0]", "mean = 0.5", "A = (r − 0.5) / 2"]
    assert all(f'"{name}"' in told["schema"] for name in ("halved", "plain", "digits"))
