"""`grpo rescore` over the folder of a run of the real command: what it prints and writes, and what it refuses."""

import json
import shutil

import pytest
import yaml

from grpo_core.cli.main import main
from grpo_core.rewards import Rubric
from tests.core.runs import PLAIN, Setting, groups_of, make_home, merged
from tests.disks import small_disk

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


def test_problems_of_another_dataset_are_refused(home, second, tmp_path, capsys):
    rows = [json.loads(line) for line in (home / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    (tmp_path / "other.jsonl").write_text(
        "".join(json.dumps({**row, "answer": f"{row['answer']}1"}) + "\n" for row in rows), encoding="utf-8"
    )
    words = ["rescore", str(home / "run"), "--verifier", str(second), "--data"]
    assert main([*words, str(tmp_path / "other.jsonl")]) == 2
    assert "other.jsonl is not the file that the run was trained on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda run: (run / "config.yaml").unlink(), 2, "holds neither a run"),
        (lambda run: shutil.rmtree(run / "samples"), 2, "no stored samples"),
        (lambda run: (run / "samples" / "step-000001.jsonl").write_text("{}\n"), 2, "line 1 is no group"),
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
    assert main(["rescore", str(home / "run"), "--verifier", str(second)]) == 2
    assert "by --data FILE" in capsys.readouterr().err


# ---------------------------------------------------------------------- by the run's own reward


def checked(home, run, *words, capsys):
    status = main(["rescore", str(run), "--data", str(home / "train.jsonl"), "--json", *words])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture
def copied(home, tmp_path):
    return shutil.copytree(home / "run", tmp_path / "run")


def rewritten(run, change):
    """One sample of step 2, changed in its record."""
    path = run / "samples" / "step-000002.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(lines[1]["record"]["samples"][3])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def test_the_runs_own_reward_gives_every_stored_reward(home, capsys):
    status, result = checked(home, home / "run", capsys=capsys)
    assert (status, result["verdict"]) == (0, "equal")
    assert (result["samples"], result["equal"], result["differing"], result["not_kept"]) == (48, 48, 0, 0)


def another_reward(sample):
    sample["reward"] += 0.125


def another_component(sample):
    sample["components"]["near"]["value"] = 0.5


def no_reward(sample):
    sample["reward"] = None


@pytest.mark.parametrize(
    ("change", "status", "differing", "unscored", "what"),
    [
        (another_reward, 1, 1, 0, "reward"),
        (another_component, 1, 1, 0, "component near"),
        (no_reward, 0, 0, 1, None),
    ],
)
def test_a_stored_reward_that_was_altered_is_named(home, copied, capsys, change, status, differing, unscored, what):
    rewritten(copied, change)
    ended, result = checked(home, copied, capsys=capsys)
    assert (ended, result["differing"], result["unscored"]) == (status, differing, unscored)
    assert [mismatch["what"] for mismatch in result["mismatches"]] == ([] if what is None else [what])
    for mismatch in result["mismatches"]:
        assert (mismatch["step"], mismatch["group"], mismatch["sample"]) == (2, 1, 3)


def test_one_altered_reward_among_thirty_thousand_is_found(home, copied, capsys):
    """The groups of one step, many times over: as many samples as the demo's run stores."""
    path = copied / "samples" / "step-000002.jsonl"
    (first, *_) = path.read_text(encoding="utf-8").splitlines()
    line = json.loads(first)
    samples = line["record"]["samples"]
    for index in range(3840):
        line["record"]["index"] = index
        (copied / "samples" / f"step-{index + 3:06d}.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    samples[5]["reward"] += 0.25
    line["record"]["index"], line["record"]["step"] = 1777, 1780
    (copied / "samples" / "step-001780.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    ended, result = checked(home, copied, capsys=capsys)
    assert (ended, result["samples"], result["differing"]) == (1, 30_720 + 48, 1)
    (mismatch,) = result["mismatches"]
    assert (mismatch["step"], mismatch["group"], mismatch["sample"]) == (1780, 1777, 5)


def test_a_judge_is_named_and_its_stored_scores_are_used(home, copied, capsys):
    config = yaml.safe_load((copied / "config.yaml").read_text(encoding="utf-8"))
    judge = {"model": "m", "base_url": "https://judge.invalid/v1"}
    config["reward"]["components"].append({"name": "taste", "kind": "judge", "weight": 1.0, "params": judge})
    (copied / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for path in (copied / "samples").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for sample in (sample for line in lines for sample in line["record"]["samples"]):
            sample["components"]["taste"] = {"value": 0.0}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    status, result = checked(home, copied, capsys=capsys)
    assert (status, result["equal"]) == (0, 48)
    assert result["not_run"] == {"taste": "needs the judge's server"}


def test_another_verifier_in_python_says_what_it_would_have_paid(home, tmp_path, capsys):
    source = tmp_path / "half.py"
    source.write_text("def verify(sample):\n    return 0.5\n", encoding="utf-8")
    assert rescored(home, source, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    stored = [sample["reward"] for group in groups_of(home / "run") for sample in group["samples"]]
    assert figures["mean_reward"] == {"first": pytest.approx(sum(stored) / 48), "second": 0.5}
    assert figures["groups_with_spread"]["second"] == 0 < figures["groups_with_spread"]["first"]
    assert figures["advantage_turned"] == 0


def test_without_room_for_the_scores_it_says_where_and_leaves_no_part(home, second, tmp_path, capsys):
    with small_disk(tmp_path / "small", 4096) as folder:
        out = folder / "scores.jsonl"
        assert rescored(home, second, "--out", str(out)) == 2
        assert not [*folder.iterdir()]
    assert f"the disk of {folder} is full" in capsys.readouterr().err
