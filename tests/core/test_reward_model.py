"""Training a reward model, by the real command on a tiny model: what it learns and measures, that it is resumed to the
bit, and that the reward kind reads it as it was trained."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaForSequenceClassification

from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError, DataError
from grpo_core.rewards.base import Context, ScoreRequest
from grpo_core.rewards.models.reward_model import RewardModel, RewardModelParams
from grpo_core.trainer.checkpoints.export import export
from grpo_core.trainer.preferences import PreferenceInputs, load_preferences
from grpo_core.training.reward_model import RewardModelTraining, portions
from tests.tables import cases

from .rewards.classifiers import save
from .runs import KILLED, STEP_POINTS, forked, result, resuming, rows
from .tiny import config as grpo_config
from .tiny import tiny_folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, pairs whose better answer ends with !, and scores: minus the letters of an answer."""
    folder = tmp_path_factory.mktemp("preferences")
    tiny_folder(folder / "base")
    texts = ["a", "bb", "ccc", "dddd"]
    pairs = [
        {"prompt": f"say {n}", "chosen": f"{texts[n % 3]}!", "rejected": f"{texts[n % 4]}?", "margin": n % 2}
        for n in range(24)
    ]
    write(folder / "pairs.jsonl", pairs)
    write(folder / "earlier.jsonl", [{**pair, "prompt": f"earlier {n}"} for n, pair in enumerate(pairs[:8])])
    scores = [{"prompt": f"say {n}", "completion": text, "score": -len(text)} for n in range(8) for text in texts]
    write(folder / "scores.jsonl", scores)
    return folder


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def settings(**parts: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "kind": "reward_model",
        "model": {"path": "base"},
        "data": {"path": "pairs.jsonl", "holdout": 6},
        "optim": {"steps": 4, "lr": 1e-3, "batch_size": 4},
        "engine": {"threads": 1},
        "eval": {"every": 2},
    }
    return {**base, **parts}


def config(**parts: Any) -> RewardModelConfig:
    return RewardModelConfig.from_dict(settings(**parts))


def train(home: Path, out: Path, *words: str, fault: str = "", **parts: Any) -> int:
    """Exit status of `grpo train`, or minus the signal that ended it."""
    path = home / f"{out.name}.yaml"
    path.write_text(yaml.safe_dump(settings(**parts)), encoding="utf-8")
    return forked(["train", str(path), "--out", str(out), *words], fault=fault, log=out.with_name(f"{out.name}.log"))


def inputs_of(home: Path, **parts: Any) -> PreferenceInputs:
    return load_preferences(config(**parts), base=home, device=torch.device("cpu"))


def engine(home: Path, **parts: Any) -> tuple[RewardModelTraining, PreferenceInputs]:
    inputs = inputs_of(home, **parts)
    return RewardModelTraining(inputs.classifier.loaded, config(**parts)), inputs


def gradients(training: RewardModelTraining) -> dict[str, torch.Tensor]:
    own = training._trained
    return {name: weight.grad.clone() for name, weight in zip(own._names, own.weights, strict=True)}  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def trained(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody killed. To be read."""
    out = tmp_path_factory.mktemp("trained") / "whole"
    assert train(home, out) == 0, out.with_name("whole.log").read_text()
    return out


def scored_by(folder: Path, prompt: str, *completions: str, **params: Any) -> list[float]:
    model = RewardModel(RewardModelParams(path=str(folder), **params), Context(base=Path("/")))
    scores = model.score([ScoreRequest(Problem("one", prompt, ""), text) for text in completions], lambda: None)
    return [float(score.value or 0.0) for score in scores]


# ---------------------------------------------------------------------- the config


@pytest.mark.parametrize(("parts", "path", "code"), cases("config/reward_model_refused", "parts", "path", "code"))
def test_settings_that_do_not_go_together_are_refused(parts: dict[str, Any], path: str, code: str) -> None:
    given = {"model": {"path": "m"}, "data": {"path": "p"}, "eval": {"before": False, "after": False}, **parts}
    with pytest.raises(ConfigError) as caught:
        RewardModelConfig.from_dict(given)
    assert [(problem.path, problem.code) for problem in caught.value.problems] == [(path, code)]


# ---------------------------------------------------------------------- one step


def test_a_step_is_the_mean_loss_of_transformers_own_forward_passes(home: Path) -> None:
    """Each text alone, without padding, through the model as transformers loads it; torch's logsigmoid; autograd."""
    training, inputs = engine(home, center=0.01, optim={"steps": 4, "lr": 1e-3, "batch_size": 4, "max_grad_norm": 1e9})
    own = [row.row for row in inputs.train[:5]]
    model = inputs.classifier.loaded.model
    margins = [row.target for row in own]
    assert len(set(margins)) == 2
    total = torch.zeros(())
    for row in own:
        chosen, rejected = (model(input_ids=torch.tensor([text])).logits[0, 0] for text in row.texts)
        total = total + (-logsigmoid(chosen - rejected - row.target) + 0.01 * (chosen + rejected) ** 2) / len(own)
    total.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    updated = training.update(own, step=1)
    assert updated.metrics["loss"] == pytest.approx(total.item(), rel=1e-5)
    assert updated.metrics["grad_norm"] == pytest.approx(
        math.sqrt(sum(float(grad.square().sum()) for grad in expected.values())), rel=1e-4
    )
    for name, grad in gradients(training).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)
    assert updated.tokens == sum(len(text) for row in own for text in row.texts)
    assert updated.metrics["rewards/margins"] == pytest.approx(
        updated.metrics["rewards/chosen"] - updated.metrics["rewards/rejected"]
    )


@pytest.mark.parametrize("objective", ["bradley_terry", "regression"])
def test_the_size_of_micro_batches_changes_nothing(home: Path, objective: str) -> None:
    data = {"path": "pairs.jsonl" if objective == "bradley_terry" else "scores.jsonl", "holdout": 8}
    updates = []
    for tokens in (1, 30, 10_000):
        parts = {"objective": objective, "data": data, "engine": {"threads": 1, "micro_batch_tokens": tokens}}
        training, inputs = engine(home, **parts)
        updated = training.update([row.row for row in inputs.train[:7]], step=1)
        updates.append((updated.metrics, gradients(training)))
    (metrics, grads), *others = updates
    for other_metrics, other_grads in others:
        assert other_metrics == pytest.approx(metrics, rel=1e-5)
        for name, grad in grads.items():
            torch.testing.assert_close(other_grads[name], grad, rtol=1e-4, atol=1e-6)


def test_portions_hold_what_fits_with_padding() -> None:
    assert list(portions([5, 1, 3, 9], 2, 12)) == [[1, 2], [0], [3]]  # 2·2·3 = 12; 2·5 = 10; 2·9 is too long alone
    assert list(portions([2, 2, 2], 1, 4)) == [[0, 1], [2]]


def test_bf16_weights_are_trained_through_fp32_copies(home: Path) -> None:
    """One step of 1e-6 is lost in bf16 and kept in the copies."""
    parts = {"model": {"path": "base", "dtype": "bfloat16"}, "optim": {"steps": 4, "lr": 1e-6, "batch_size": 4}}
    training, inputs = engine(home, **parts)
    before = {name: weight.clone() for name, weight in training.state()["policy"].items()}
    training.update([row.row for row in inputs.train[:4]], step=1)
    after = training.state()["policy"]
    assert all(weight.dtype == torch.float32 for weight in after.values())
    assert not torch.equal(after["score.weight"], before["score.weight"])
    assert inputs.classifier.loaded.model.score.weight.dtype == torch.bfloat16


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize("chat", [False, True])
def test_training_and_scoring_read_the_same_ids(home: Path, tmp_path: Path, chat: bool) -> None:
    """With special tokens spelled out in prompt and completions, and placeholders in them."""
    tricky = [{"prompt": "a<|end|>{completion}", "chosen": "b<|end|>c", "rejected": "{prompt}<|pad|>"}]
    write(tmp_path / "pairs.jsonl", tricky)
    save(tmp_path / "model", LlamaForSequenceClassification, chat=True)
    own = {"path": "pairs.jsonl", "chat": chat} | ({} if chat else {"template": "<s>{prompt}|{completion}<|end|>"})
    parts = {"model": {"path": "model"}, "data": own, "eval": {"before": False, "after": False}}
    inputs = inputs_of(tmp_path, **parts)
    kind = RewardModel(
        RewardModelParams(path="model", chat=chat, template=own.get("template", "{prompt}{completion}")),
        Context(base=tmp_path),
    )
    (row,) = inputs.train
    problem = Problem("1", tricky[0]["prompt"], "")
    for name, ids in zip(("chosen", "rejected"), row.row.texts, strict=True):
        assert tuple(kind._row(ScoreRequest(problem, tricky[0][name])).ids) == ids  # type: ignore[union-attr]
    assert row.row.texts[0].count(kind._model.tokenizer.eos_token_id) == (2 if chat else 1)


def test_a_long_text_is_refused_or_its_row_dropped_never_cut(home: Path) -> None:
    lengths = [len(text) for row in inputs_of(home).train for text in row.row.texts]
    most = max(lengths) - 1
    with pytest.raises(DataError, match=r"data\.long: drop"):
        inputs_of(home, data={"path": "pairs.jsonl", "holdout": 6, "max_tokens": most})
    inputs = inputs_of(home, data={"path": "pairs.jsonl", "holdout": 6, "max_tokens": most, "long": "drop"})
    assert inputs.dropped["training"]
    assert inputs.train_facts["dropped"] == len(inputs.dropped["training"])
    assert max(len(text) for row in inputs.train for text in row.row.texts) <= most


# ---------------------------------------------------------------------- a run


def test_a_run_learns_measures_and_says_so(home: Path, trained: Path) -> None:
    metrics = [row["metrics"] for row in rows(trained / "metrics.jsonl")]
    assert [row["num_tokens"] for row in metrics] == sorted(row["num_tokens"] for row in metrics)
    for row in metrics:
        assert {"loss", "grad_norm", "learning_rate", "epoch", "rewards/chosen", "rewards/accuracies"} <= row.keys()
    assert metrics[0]["epoch"] == pytest.approx(4 / 18)
    assert [step for step, row in enumerate(metrics, 1) if "eval/heldout/score" in row] == [2, 4]
    assert all("eval/loss" in row for row in metrics if "eval/heldout/score" in row)
    before, after = (rows(trained / f"evals/{phase}.jsonl") for phase in ("before", "after"))
    assert [row.get("problem_id") for row in before] == [row.get("problem_id") for row in after]
    assert before[-1]["protocol"] == after[-1]["protocol"]
    items = [row for row in after if row["kind"] == "eval_item"]
    (facts,) = [row["data"] for row in rows(trained / "events.jsonl") if row.get("type") == "reward_model_facts"]
    assert facts["accuracy"]["share"] == pytest.approx(sum(row["score"] for row in items) / len(items))
    assert facts["accuracy"]["prompts"] == len({row["cluster"] for row in items}) == 6
    assert "expected calibration error" in trained.with_name("whole.log").read_text()
    manifest = json.loads((trained / "manifest.json").read_text())
    assert manifest["model"]["architecture"] == "LlamaForSequenceClassification"
    assert manifest["data"]["train"]["problems"] == 18
    assert manifest["data"]["eval"]["rows_with_a_training_prompt"] == 0


def test_it_learns_to_rank(home: Path, tmp_path: Path) -> None:
    """The answer with !, which 40 steps teach: every held-out pair is ranked right after, by a falling loss."""
    out = tmp_path / "learns"
    assert train(home, out, optim={"steps": 40, "lr": 5e-3, "batch_size": 8}) == 0
    after = [row for row in rows(out / "evals/after.jsonl") if row["kind"] == "eval_item"]
    assert [row["score"] for row in after] == [1.0] * 6
    losses = [row["metrics"]["loss"] for row in rows(out / "metrics.jsonl")]
    assert sum(losses[-5:]) < 0.25 * sum(losses[:5])


def test_scores_are_learned_by_regression_and_ranked_within_prompts(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    parts = {"objective": "regression", "data": {"path": "scores.jsonl", "holdout": 8}}
    assert train(home, out, **parts, optim={"steps": 60, "lr": 5e-3, "batch_size": 12}) == 0
    after = [row for row in rows(out / "evals/after.jsonl") if row["kind"] == "eval_item"]
    assert len(after) == 2 * 6  # of two prompts every two of four answers
    assert sum(row["score"] for row in after) == 12
    (facts,) = [row["data"] for row in rows(out / "events.jsonl") if row.get("type") == "reward_model_facts"]
    assert facts["loss"] < 1.25  # the variance of the scores −1, −2, −3, −4: what their mean would leave
    assert facts["rewards"]["n"] == 8
    assert {"rewards/mean", "rewards/std"} <= rows(out / "metrics.jsonl")[0]["metrics"].keys()


def test_killed_in_every_step_and_resumed_it_is_the_run_that_nobody_killed(
    home: Path, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    for step, point in enumerate((*STEP_POINTS, "evaluated"), start=1):
        where = f"{point}:{min(step, 4)}" if point != "evaluated" else "evaluated:4"
        assert train(home, out, *resuming(out), fault=where) == KILLED, where
    assert train(home, out, *resuming(out)) == 0
    assert result(out) == result(trained)


def test_replayed_rows_have_their_exact_share_and_are_recorded(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "pairs.jsonl", [json.loads(line) for line in (home / "pairs.jsonl").read_text().splitlines()])
    earlier = [json.loads(line) for line in (home / "earlier.jsonl").read_text().splitlines()]
    held = inputs_of(home).heldout[0].preference.problem.prompt
    write(tmp_path / "earlier.jsonl", [*earlier, {**earlier[0], "prompt": held}])
    tiny_folder(tmp_path / "base")
    data = {"path": "pairs.jsonl", "holdout": 6, "replay_path": "earlier.jsonl", "replay_share": 0.3}
    out = tmp_path / "replay"
    assert train(tmp_path, out, data=data, optim={"steps": 5, "lr": 1e-3, "batch_size": 4}) == 0
    replay = json.loads((out / "manifest.json").read_text())["data"]["train"]["replay"]
    assert (replay["problems"], replay["share"], replay["held_out_left_out"]) == (8, 0.3, 1)
    epochs = [row["metrics"]["epoch"] for row in rows(out / "metrics.jsonl")]
    # Of 4, 8, 12, 16, 20 rows 1.2, 2.4, 3.6, 4.8, 6 are replayed: 1, 2, 4, 5, 6; the rest are new, of 18.
    assert epochs == pytest.approx([3 / 18, 6 / 18, 8 / 18, 11 / 18, 14 / 18])
    changed = tmp_path / "changed"
    assert train(tmp_path, changed, data=data, fault="updated:3") == KILLED
    write(tmp_path / "earlier.jsonl", earlier[:4])
    assert train(tmp_path, changed, "--resume", data=data) not in (0, KILLED)
    assert "the replayed preferences" in changed.with_name("changed.log").read_text()


def test_rows_that_nothing_can_be_ranked_of_are_refused(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "base")
    write(tmp_path / "scores.jsonl", [{"prompt": f"p{n}", "completion": "a", "score": n} for n in range(6)])
    with pytest.raises(DataError, match="nothing to rank"):
        inputs_of(tmp_path, objective="regression", data={"path": "scores.jsonl", "holdout": 2})


def test_held_out_rows_with_a_trained_prompt_are_counted_and_said(home: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (home / "pairs.jsonl").read_text().splitlines()]
    write(home / "held.jsonl", [*lines[:2], {**lines[2], "prompt": "new"}])
    out = tmp_path / "overlap"
    assert train(home, out, data={"path": "pairs.jsonl", "heldout_path": "held.jsonl"}) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["data"]["eval"]["rows_with_a_training_prompt"] == 2
    assert [row for row in rows(out / "events.jsonl") if row.get("message", "").startswith("2 of 3 held-out rows")]


# ---------------------------------------------------------------------- what it is used for


def test_its_weights_load_in_transformers_and_as_a_reward(home: Path, trained: Path) -> None:
    final = trained / "checkpoints/final"
    model = AutoModelForSequenceClassification.from_pretrained(final)
    tokenizer = AutoTokenizer.from_pretrained(final)
    with torch.no_grad():
        (theirs,) = model(**tokenizer("say 1bb!", return_tensors="pt", return_token_type_ids=False)).logits[0].tolist()
    assert scored_by(final, "say 1", "bb!") == pytest.approx([theirs], rel=1e-5)
    items = [row for row in rows(trained / "evals/after.jsonl") if row["kind"] == "eval_item"]
    for item in items:
        chosen, rejected = scored_by(final, item["prompt"], item["answer"], item["completion"])
        assert item["detail"] == f"chosen {chosen:.4g}, rejected {rejected:.4g}"


def test_a_grpo_run_rewards_as_the_trainer_scores(home: Path, trained: Path, tmp_path: Path) -> None:
    write(home / "train.jsonl", [{"prompt": f"say {n}", "answer": "k"} for n in range(8)])
    judge = {"name": "rm", "kind": "reward_model", "params": {"path": str(trained / "checkpoints/final")}}
    exact = {"name": "answer", "kind": "exact", "weight": 0.0}
    path = home / "grpo.yaml"
    path.write_text(grpo_config(reward={"components": [judge, exact]}).to_yaml(), encoding="utf-8")
    out = tmp_path / "grpo"
    assert forked(["train", str(path), "--out", str(out)], log=tmp_path / "grpo.log") == 0, (
        tmp_path / "grpo.log"
    ).read_text()
    inputs = inputs_of(home, model={"path": str(trained / "checkpoints/final")})
    assert inputs.classifier.new_head is None
    training = RewardModelTraining(inputs.classifier.loaded, config())
    tokenizer = inputs.classifier.loaded.tokenizer
    groups = [row for file in sorted((out / "samples").glob("*.jsonl")) for row in rows(file) if row["kind"] == "group"]
    samples = [(group["prompt"], sample) for group in groups for sample in group["samples"]]
    assert len(samples) == 16
    scored = [
        (prompt, sample)
        for prompt, sample in samples
        if "<|" not in sample["completion"] and sample["components"]["rm"]["error"] is None  # NUL is no text
    ]
    assert scored
    expected = training.rewards([tokenizer(prompt + sample["completion"])["input_ids"] for prompt, sample in scored])
    assert [sample["components"]["rm"]["value"] for _, sample in scored] == pytest.approx(expected, abs=1e-5)
    assert [row for row in rows(out / "events.jsonl") if "another than the policy's" in row.get("message", "")] == []


def test_another_tokenizer_than_the_policys_is_allowed_and_said(home: Path, trained: Path, tmp_path: Path) -> None:
    """The same bytes in another order of ids."""
    write(home / "train.jsonl", [{"prompt": f"say {n}", "answer": "k"} for n in range(8)])
    folder = tmp_path / "other"
    save(folder, LlamaForSequenceClassification)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))
    judge = {"name": "rm", "kind": "reward_model", "params": {"path": str(folder)}}
    path = home / "other.yaml"
    exact = {"name": "answer", "kind": "exact", "weight": 0.0}
    path.write_text(grpo_config(reward={"components": [judge, exact]}, optim={"steps": 1}).to_yaml(), encoding="utf-8")
    assert forked(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    (event,) = [row for row in rows(tmp_path / "run/events.jsonl") if "tokenizer" in row.get("message", "")]
    assert event["data"] == {"component": "rm"}
    assert str(folder) in event["message"]
    assert "base" in event["message"]


def test_texts_made_otherwise_than_in_training_are_refused(trained: Path) -> None:
    final = trained / "checkpoints/final"
    assert scored_by(final, "p", "c")
    with pytest.raises(ConfigError, match="trained on texts"):
        scored_by(final, "p", "c", template="{prompt}\n{completion}")


def test_a_checkpoint_is_exported_as_a_reward_model(home: Path, trained: Path, tmp_path: Path) -> None:
    export(trained / "checkpoints/step-000004", tmp_path / "exported")
    final, exported = (
        load_file(f / "model.safetensors") for f in (trained / "checkpoints/final", tmp_path / "exported")
    )
    assert final.keys() == exported.keys()
    assert all(torch.equal(final[name], exported[name]) for name in final)
    assert scored_by(tmp_path / "exported", "p", "c") == scored_by(trained / "checkpoints/final", "p", "c")


def test_what_the_model_cannot_read_is_refused(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "pairs.jsonl", [{"prompt": "p", "chosen": "a" * 200, "rejected": "b"}])
    save(tmp_path / "short", LlamaForSequenceClassification)
    off = {"model": {"path": "short"}, "data": {"path": "pairs.jsonl"}, "eval": {"before": False, "after": False}}
    with pytest.raises(ConfigError, match="128 positions"):
        inputs_of(tmp_path, **off)
    with pytest.raises(ConfigError, match="no chat template"):
        inputs_of(home, data={"path": "pairs.jsonl", "holdout": 6, "chat": True})
