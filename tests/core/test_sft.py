"""Runs of fine-tuning by the real command: what they learn, measure, record and refuse; killed and resumed to the
bit; on two ranks as on one."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.cli.main import main
from grpo_core.config.evaluation import LOSS
from grpo_core.errors import CheckpointError, ConfigError, DataError
from grpo_core.files.checkpoint import step_folder

from .runs import (
    KILLED,
    Launched,
    far,
    forked,
    metrics_of,
    names_of_steps,
    outcome_of,
    result,
    resuming,
    rows,
    sft,
    warnings_of,
    weights_of,
)
from .tiny import load, tiny_folder

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("sft") / "base")


# ---------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def home(tmp_path_factory, folder: Path) -> Path:
    """Ten questions with one answer each, two of them in turns, and three problems."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(folder, home / "base")
    write(home / "train.jsonl", [{"prompt": f"say {letter}", "completion": letter * 3} for letter in "abcdefghij"])
    write(home / "heldout.jsonl", [{"prompt": f"say {letter}", "answer": letter * 3} for letter in "klm"])
    return home


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def train(home: Path, out: Path, *words: str, fault: str = "", log: Path | None = None, **parts: Any) -> int:
    path = home / f"{out.name}.yaml"
    path.write_text(sft(**parts).to_yaml(), encoding="utf-8")
    return forked(["train", str(path), "--out", str(out), *words], fault=fault, log=log)


PROBLEMS = {
    "path": "heldout.jsonl",
    "max_completion_tokens": 6,
    "reward": {"components": [{"name": "same", "kind": "exact", "params": {"extract": "whole"}}]},
}
WATCHED = {"data": {"path": "train.jsonl", "holdout": 2}, "eval": {"every": 2}}


@pytest.fixture(scope="module")
def whole(home: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    evaluated = {**PROBLEMS, "every": 2, "before": True, "after": True}
    assert train(home, out, data=WATCHED["data"], eval=evaluated, optim={"steps": 12, "lr": 0.01, "batch_size": 4}) == 0
    return out


def test_what_a_run_measures_and_records(whole: Path) -> None:
    steps = metrics_of(whole)
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    assert [step["epoch"] for step in steps] == [4 * number / 8 for number in range(1, 13)]
    assert {"mean_token_accuracy", "grad_norm", "learning_rate", "num_tokens", "tokens_per_second/update"} <= {
        *steps[0]
    }
    measured = [number for number, step in enumerate(steps, start=1) if "eval/loss" in step]
    assert measured == [2, 4, 6, 8, 10, 12]
    assert all("eval/heldout/score" in steps[number - 1] for number in measured)
    events = [row for row in rows(whole / "events.jsonl") if row.get("type") == "heldout_loss"]
    before, after = (event["data"] for event in events)
    assert (before["phase"], before["step"], after["phase"], after["step"]) == ("before", 0, "after", 12)
    assert after["loss"] == steps[-1]["eval/loss"] < before["loss"]
    outcome = outcome_of(whole)
    totals = outcome["totals"]
    assert (totals["heldout_loss_before"], totals["heldout_loss_after"]) == (before["loss"], after["loss"])
    # Of 12 steps of 4: a prompt of 5 bytes, an answer of 3 and its end.
    assert (totals["samples"], totals["completion_tokens"], totals["tokens"]) == (48, 48 * 4, 48 * 9)
    assert outcome["message"].startswith("Finished 12 steps, 6.00 epochs; held-out loss ")
    for phase in ("before", "after"):
        assert [row["kind"] for row in rows(whole / f"evals/{phase}.jsonl")] == ["eval_item"] * 3 + ["eval_result"]


def test_the_manifest_says_what_was_learned_from(home: Path, whole: Path) -> None:
    data = json.loads((whole / "manifest.json").read_text())["data"]
    train_facts = data["train"]
    assert train_facts["sha256"] == hashlib.sha256((home / "train.jsonl").read_bytes()).hexdigest()
    assert (train_facts["content"], train_facts["problems"], train_facts["format"]) == (
        "conversations",
        8,
        "prompt_completion",
    )
    assert (train_facts["tokens"], train_facts["learned_tokens"]) == (8 * 9, 8 * 4)
    assert train_facts["answer_tokens"] == {"min": 4, "mean": 4.0, "max": 4}
    assert train_facts["example"]["learned"] == [0] * 5 + [1] * 4
    assert data["heldout_conversations"]["problems"] == 2
    assert data["eval"]["problems"] == 3
    assert data["overlap"]["heldout"]["counts"]["touched"] == 0
    assert yaml.safe_load((whole / "config.yaml").read_text())["kind"] == "sft"


def test_the_best_checkpoint_has_the_lowest_held_out_loss(whole: Path) -> None:
    steps = metrics_of(whole)
    losses = {number: step["eval/loss"] for number, step in enumerate(steps, start=1) if "eval/loss" in step}
    best = min(losses, key=lambda step: losses[step])
    kept = [row for row in rows(whole / "events.jsonl") if row["kind"] == "checkpoint" and row["best"]]
    assert kept[-1]["path"] == f"checkpoints/{step_folder(best)}"
    assert (whole / kept[-1]["path"]).is_dir()


def test_early_stopping_by_the_held_out_loss(home: Path, tmp_path: Path) -> None:
    """No loss is lower by a whole nat after so few steps."""
    evaluated = {"every": 1, "patience": 2, "min_delta": 1.0}
    assert train(home, tmp_path / "run", data=WATCHED["data"], eval=evaluated, optim={"steps": 9, "lr": 1e-5}) == 0
    outcome = outcome_of(tmp_path / "run")
    assert (outcome["code"], outcome["steps_done"]) == ("early_stop", 2)
    assert "2 evaluations of the held-out loss in a row were not better by more than 1.0000" in outcome["message"]


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": WATCHED,
    "packed": {**WATCHED, "engine": {"layout": "packed", "micro_batch_tokens": 20}},
    "lora": {**WATCHED, "model": {"lora": {"rank": 2}, "dtype": "bfloat16"}},
}
POINTS = ["step:2", "updating:2", "evaluated:2", "updated:3", "recorded:3", "checkpoint:filled@2", "checkpoint:renamed"]


@pytest.mark.parametrize("name", ["plain", pytest.param("packed", marks=slow), pytest.param("lora", marks=slow)])
def test_killed_anywhere_and_resumed_is_the_run_that_nobody_killed(home: Path, tmp_path: Path, name: str) -> None:
    parts = SETTINGS[name]
    assert train(home, tmp_path / "whole", **parts) == 0
    out = tmp_path / "run"
    for point in POINTS:
        assert train(home, out, *resuming(out), fault=point, **parts) == KILLED, point
    assert train(home, out, *resuming(out), **parts) == 0
    assert result(out) == result(tmp_path / "whole")
    assert outcome_of(out)["message"] == outcome_of(tmp_path / "whole")["message"]


def test_another_config_or_other_data_cannot_resume(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "home")
    out = tmp_path / "run"
    assert train(tmp_path / "home", out, fault="updated:3") == KILLED
    assert train(tmp_path / "home", out, "--resume", optim={"batch_size": 4}) == ConfigError.exit_status
    write(tmp_path / "home/train.jsonl", [{"prompt": "say a", "completion": "b"}] * 4)
    assert train(tmp_path / "home", out, "--resume") == CheckpointError.exit_status
    assert names_of_steps(out)[-1] == "step-000002"


def test_packing_and_turns_change_nothing_but_rounding(home: Path, tmp_path: Path) -> None:
    for layout in ("right", "packed"):
        assert train(home, tmp_path / layout, engine={"layout": layout, "micro_batch_tokens": 20}) == 0
    assert far(weights_of(tmp_path / "right"), weights_of(tmp_path / "packed")) < 1e-5


def test_two_ranks_learn_what_one_learns(home: Path, tmp_path: Path) -> None:
    parts = {**WATCHED, "eval": {**PROBLEMS, "every": 2, "before": False, "after": True}}
    assert train(home, tmp_path / "one", **parts) == 0
    path = home / "two.yaml"
    path.write_text(sft(**parts, engine={"devices": 2}).to_yaml(), encoding="utf-8")
    launched = Launched(path, tmp_path / "two")
    assert launched.ended() == 0, launched.printed
    assert far(weights_of(tmp_path / "one"), weights_of(tmp_path / "two")) < 1e-5
    for one, two in zip(metrics_of(tmp_path / "one"), metrics_of(tmp_path / "two"), strict=True):
        for name in ("loss", "mean_token_accuracy", "grad_norm", "num_tokens", "epoch"):
            assert two[name] == pytest.approx(one[name], rel=1e-4), name
        assert ("eval/loss" in one) == ("eval/loss" in two)
        if "eval/loss" in one:
            assert two["eval/loss"] == pytest.approx(one["eval/loss"], rel=1e-5)


def test_what_it_learned_is_a_model(home: Path, whole: Path, tmp_path: Path) -> None:
    """Of its end and, exported, of a step: it writes the answers and their end."""
    assert main(["export", str(whole / "checkpoints" / step_folder(12)), "--out", str(tmp_path / "model")]) == 0
    exported, final = load(tmp_path / "model"), load(whole / "checkpoints/final")
    assert far(dict(exported.model.named_parameters()), dict(final.model.named_parameters())) == 0
    again = train(
        home, tmp_path / "next", model={"path": str(whole / "checkpoints" / step_folder(12))}, optim={"steps": 1}
    )
    assert again == 0
    first = metrics_of(tmp_path / "next")[0]["loss"]
    assert first < 0.5 * metrics_of(whole)[0]["loss"]


# ---------------------------------------------------------------------- what is said, what is refused


def test_repeated_leaked_and_many_epochs_are_said(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "repeated.jsonl", [{"prompt": "say a", "completion": "a"}] * 2)
    write(tmp_path / "known.jsonl", [{"prompt": "say  a", "completion": "b"}, {"prompt": "say z", "completion": "z"}])
    data = {"path": str(tmp_path / "repeated.jsonl"), "heldout_path": str(tmp_path / "known.jsonl")}
    assert train(home, tmp_path / "run", data=data, optim={"steps": 8, "batch_size": 3}) == 0
    warnings = warnings_of(tmp_path / "run")
    assert any("learned 12 times" in warning for warning in warnings)
    assert any("the prompts of 1 held-out conversations are trained on" in warning for warning in warnings)
    said = [row for row in rows(tmp_path / "run/events.jsonl") if row.get("type") == "data"]
    assert [row["data"] for row in said] == [{"repeated": 1}]


def test_a_file_with_faults_ends_the_run_before_its_first_step(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "bad.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    assert train(home, tmp_path / "run", data={"path": str(tmp_path / "bad.jsonl")}) == DataError.exit_status
    outcome = outcome_of(tmp_path / "run")
    assert (outcome["code"], outcome["steps_done"]) == ("data_error", 0)
    assert "line 1: has no turn of the assistant" in outcome["message"]


def test_longer_than_the_model_s_context_is_refused(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "long.jsonl", [{"prompt": "a" * 600, "completion": "b"}])
    log = tmp_path / "log"
    assert (
        train(home, tmp_path / "run", data={"path": str(tmp_path / "long.jsonl")}, log=log) == ConfigError.exit_status
    )
    assert "has 602 tokens; the model has 512 positions" in log.read_text()


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"checkpoints": {"best_by": LOSS}}, "loss_without_heldout"),
        ({"eval": {"every": 1}}, "every_without_problems"),
        ({"eval": {"every": 1, "during": ["other"]}, "data": {"holdout": 1}}, "unknown_suite_during"),
        ({"eval": {"patience": 1}, "data": {"holdout": 1}}, "every_without_problems"),
        ({"eval": {"patience": 1, "cost": 0.1}, "data": {"holdout": 1}}, "patience_needs_every"),
        ({"eval": {"before": True}}, "nothing_to_evaluate_on"),
        ({"eval": {"path": "heldout.jsonl"}}, "heldout_without_verifier"),
        ({"checkpoints": {"best_by": "heldout"}, "data": {"holdout": 1}}, "best_by_not_evaluated"),
        ({"eval": {"suites": [{"name": "loss", "path": "builtin:performance"}]}}, "suite_named_loss"),
    ],
)
def test_settings_that_do_not_go_together(parts: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sft(**parts)
    assert code in [problem.code for problem in refused.value.problems]


# ---------------------------------------------------------------------- distillation


@pytest.fixture(scope="module")
def sampled(home: Path, tmp_path_factory) -> Path:
    """What a run of kind sample wrote: two answers of the base model to each of three problems."""
    out = tmp_path_factory.mktemp("sampled") / "run"
    config = {
        "kind": "sample",
        "name": "teacher",
        "model": {"path": "base"},
        "data": {"path": "heldout.jsonl"},
        "reward": {"components": [{"name": "same", "kind": "exact", "params": {"extract": "whole"}}]},
        "sampling": {"group_size": 2, "prompts_per_step": 3, "max_completion_tokens": 8},
        "filter": {"passed": False, "finished": False},
        "engine": {"threads": 1},
    }
    path = home / "sample.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert forked(["train", str(path), "--out", str(out)]) == 0
    return out / "dataset"


def distill(home: Path, out: Path, path: Path, log: Path | None = None, **data: Any) -> int:
    config = home / f"{out.name}.yaml"
    fields = {**sft(data={"path": str(path), **data}, optim={"steps": 1}).to_dict(), "kind": "distill"}
    config.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return forked(["train", str(config), "--out", str(out)], log=log)


@pytest.mark.parametrize("part", ["", "rows.jsonl", "dataset.json"])
def test_a_distilled_model_names_who_answered(home: Path, sampled: Path, tmp_path: Path, part: str) -> None:
    assert distill(home, tmp_path / "run", sampled / part) == 0
    data = json.loads((tmp_path / "run/manifest.json").read_text())["data"]
    assert (data["sampled_by"]["run"], data["sampled_by"]["model"]["source"]) == ("teacher", "base")
    assert (data["train"]["problems"], data["train"]["sha256"]) == (6, data["sampled_by"]["sha256"])
    (event,) = [row for row in rows(tmp_path / "run/events.jsonl") if row.get("type") == "sampled_by"]
    assert event["message"] == "the answers are samples of base, by the run teacher"
    assert not warnings_of(tmp_path / "run")


def test_answers_learned_behind_another_prompt_are_said(home: Path, sampled: Path, tmp_path: Path) -> None:
    assert distill(home, tmp_path / "run", sampled, template="Q: {prompt}") == 0
    assert any("sampled with another data.template" in warning for warning in warnings_of(tmp_path / "run"))


def test_rows_alone_name_their_samples(home: Path, sampled: Path, tmp_path: Path) -> None:
    """As a platform hands them out, which knows the run that wrote them."""
    shutil.copy(sampled / "rows.jsonl", tmp_path / "rows.jsonl")
    assert distill(home, tmp_path / "run", tmp_path / "rows.jsonl") == 0
    assert "sampled_by" not in json.loads((tmp_path / "run/manifest.json").read_text())["data"]


def test_distillation_of_what_nobody_sampled_is_refused(home: Path, sampled: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert distill(home, tmp_path / "one", home / "train.jsonl", log) == DataError.exit_status
    assert "use kind: sft" in log.read_text()
    changed = shutil.copytree(sampled, tmp_path / "dataset")
    (changed / "rows.jsonl").chmod(0o644)
    write(changed / "rows.jsonl", [{"prompt": "a", "completion": "b", "from": {"problem_id": "x"}}])
    assert distill(home, tmp_path / "two", changed, log) == DataError.exit_status
    assert "is not the dataset that dataset.json describes" in log.read_text()
