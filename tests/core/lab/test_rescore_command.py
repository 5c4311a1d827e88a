"""`grpo rescore` over the folder of a run of the real command: what it prints and writes, and what it refuses."""

import json
import shutil

import pytest
import yaml

from grpo_core.cli.main import main
from grpo_core.rewards import Rubric
from tests.core.runs import PLAIN, Setting, groups_of, make_home, merged

SECOND = {"components": [{"name": "even", "kind": "numeric", "params": {"extract": "last_number", "tolerance": 3000}}]}
TRACES = {"traces": {"groups_per_step": 3}, "eval": {"before": False, "after": False}, "optim": {"steps": 2}}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """With a run of two steps in `run`."""
    home = make_home(tmp_path_factory.mktemp("home"))
    assert Setting(home, "first", merged(PLAIN, TRACES)).train(home / "run") == 0
    return home


@pytest.fixture
def second(home):
    path = home / "second.yaml"
    path.write_text(yaml.safe_dump(SECOND), encoding="utf-8")
    return path


def rescored(home, second, *words, run="run"):
    data = ["--data", str(home / "train.jsonl")]
    return main(["rescore", str(home / run), "--verifier", str(second), *data, *words])


def near(completion: str, answer: str, tolerance: float) -> bool | None:
    """Whether a completion of digits alone is near enough to the answer; None for any other."""
    if not completion.isdecimal():
        return None
    return abs(int(completion) - int(answer)) <= tolerance


def test_every_sample_has_both_rewards_and_the_figures_are_their_counts(home, second, tmp_path, capsys):
    out = tmp_path / "scores.jsonl"
    before = {path: path.read_bytes() for path in (home / "run").rglob("*") if path.is_file()}
    assert rescored(home, second, "--out", str(out), "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    stored = [(group, sample) for group in groups_of(home / "run") for sample in group["samples"]]
    assert len(lines) == len(stored) == figures["samples"] == 48
    sure = 0
    for line, (group, sample) in zip(lines, stored, strict=True):
        assert (line["step"], line["group"], line["sample"]) == (group["step"], group["index"], sample["index"])
        assert (line["reward"], line["passed"]) == (sample["reward"], sample["components"]["near"]["passed"])
        expected = near(sample["completion"], group["answer"], 3000)
        if expected is not None:
            sure += 1
            assert (line["second_reward"], line["second_passed"]) == (float(expected), expected)
    assert sure > 20
    counts = {
        (first, other): sum((line["passed"], line["second_passed"]) == (first, other) for line in lines)
        for first in (True, False)
        for other in (True, False)
    }
    words = {True: "right", False: "wrong"}
    for (first, other), count in counts.items():
        assert figures["confusion"][words[first]][words[other]] == count
    assert counts[True, False] > 0, "the second has a smaller tolerance"
    assert figures["agreement"]["count"] == counts[True, True] + counts[False, False]
    assert (figures["steps"], figures["sha256"]) == ({"first": 1, "last": 2}, digest())
    assert {path: path.read_bytes() for path in (home / "run").rglob("*") if path.is_file()} == before


def digest() -> str:
    from grpo_core.config.reward import RewardConfig

    return Rubric(RewardConfig.model_validate(SECOND)).digest


def test_the_runs_own_reward_agrees_with_itself(home, capsys):
    assert rescored(home, home / "run" / "config.yaml") == 0
    printed = capsys.readouterr().out
    assert "48 samples of steps 1 to 2" in printed
    assert "agreement 100 %" in printed
    assert "reward: same 48, lower 0, higher 0, unscored 0" in printed


def test_problems_of_another_dataset_are_refused_and_unknown_ones_have_no_score(home, second, tmp_path, capsys):
    rows = [json.loads(line) for line in (home / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    (tmp_path / "other.jsonl").write_text(
        "".join(json.dumps({**row, "answer": f"{row['answer']}1"}) + "\n" for row in rows), encoding="utf-8"
    )
    words = ["rescore", str(home / "run"), "--verifier", str(second), "--data"]
    assert main([*words, str(tmp_path / "other.jsonl")]) == 3
    assert "Give the run's own problems by --data" in capsys.readouterr().err
    (tmp_path / "first.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    assert main([*words, str(tmp_path / "first.jsonl"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["errors"]["no_problem"] == figures["changes"]["unscored"] > 0
    assert sum(row["neither"] for row in figures["confusion"].values()) == figures["errors"]["no_problem"]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda run: (run / "config.yaml").unlink(), 9, "holds no run"),
        (lambda run: shutil.rmtree(run / "samples"), 9, "no stored samples"),
        (lambda run: (run / "samples" / "step-000001.jsonl").write_text("{}\n"), 9, "line 1 is no record"),
    ],
)
def test_a_folder_without_samples_is_refused(home, second, tmp_path, capsys, change, status, words):
    shutil.copytree(home / "run", tmp_path / "run")
    change(tmp_path / "run")
    out = tmp_path / "scores.jsonl"
    assert rescored(home, second, "--out", str(out), run=tmp_path / "run") == status
    assert words in capsys.readouterr().err
    assert list(tmp_path.glob("scores*")) == []


def test_without_data_the_error_says_how_to_give_it(home, second, capsys):
    assert main(["rescore", str(home / "run"), "--verifier", str(second)]) == 3
    assert "by --data FILE" in capsys.readouterr().err
