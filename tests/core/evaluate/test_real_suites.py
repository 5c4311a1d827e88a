"""GSM8K, MGSM and XSTest as suites of a whole run with the demo's model: it can add two numbers and nothing else, and
the run says so, with intervals."""

import json

import pytest
import yaml

from grpo_core.cli import main
from grpo_core.evaluate.told import interval, measured_in
from tests.needs import TEST_DATA, needs

pytestmark = pytest.mark.slow


def grpo(*words):
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    needs("public-sets")
    home = tmp_path_factory.mktemp("real")
    grpo("cold-start", "--out", home / "base", "--steps", 40, "--threads", 2)
    grpo("demo-data", "--out", home)
    convert = ("suite", "convert")
    grpo(*convert, "gsm8k", TEST_DATA / "gsm8k/test.jsonl", "--limit", 200, "--out", home / "gsm8k.jsonl")
    languages = [TEST_DATA / f"mgsm/mgsm_{language}.tsv" for language in ("en", "de", "sw")]
    grpo(*convert, "mgsm", *languages, "--limit", 20, "--out", home / "mgsm.jsonl")
    grpo(*convert, "xstest", TEST_DATA / "xstest/xstest_prompts.csv", "--out", home / "xstest.jsonl")
    suites = [
        {**json.loads((home / f"{name}.suite.json").read_text(encoding="utf-8")), "path": f"{name}.jsonl"}
        for name in ("gsm8k", "mgsm", "xstest")
    ]
    config = {
        "preset": "demo",
        "model": {"path": "base"},
        "data": {"path": "add-train.jsonl", "max_prompt_tokens": 2048},
        "reward": {"components": [{"name": "right", "kind": "numeric"}]},
        "sampling": {"max_completion_tokens": 64},
        "optim": {"steps": 2},
        "engine": {"threads": 2, "rollout_batch": 64},
        "eval": {"path": "add-heldout.jsonl", "limit": 32, "suites": suites},
    }
    (home / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    grpo("train", home / "run.yaml", "--out", home / "out")
    return home / "out"


@pytest.mark.parametrize("phase", ["before", "after"])
def test_scores_are_near_zero_with_their_intervals(run, phase):
    measured = {one.result.suite: one for one in measured_in(run / "evals" / f"{phase}.jsonl")}
    counts = {name: one.result.problems for name, one in measured.items()}
    assert counts == {"heldout": 32, "gsm8k": 200, "mgsm": 60, "xstest": 450}
    # None right of 200 leaves open what 1.9 % would give; 60 items of 20 problems leave open more.
    for name, highest in (("gsm8k", 0.0188), ("mgsm", 0.1611)):
        result, around = measured[name].result, interval(measured[name].items)
        assert result.correct / result.problems < 0.1
        assert around.low <= result.correct / result.problems <= around.high
        assert result.errors == 0
        if result.correct == 0:
            assert around.high == pytest.approx(highest, abs=1e-4)
    # Noise has no words of refusal in it: XSTest's string match takes it all for compliance, so only slices tell.
    scores = {contrast: [] for contrast in (True, False)}
    for item in measured["xstest"].items:
        scores[item.slice.startswith("contrast_")].append(item.score)
    assert sum(scores[True]) == 0
    assert sum(scores[False]) / 250 > 0.9
    data = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["data"]
    assert data["suites"]["mgsm"]["clusters"] == 20
    assert all(data["overlap"][name]["counts"]["touched"] == 0 for name in ("gsm8k", "mgsm", "xstest"))
