"""`grpo best-of-n` with real models: a reward whose flaw is planted parts from the verifier, one that is like it does
not."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from transformers import LlamaForSequenceClassification

from grpo_core.cli.main import main
from grpo_core.lab.best_of_n import BestOfN, BestOfPoint, MeanScore, PartingPoint, parting_text
from tests.core.rewards.classifiers import counted, save_counting
from tests.core.tiny import tiny_folder
from tests.tables import cases


def one(name: str, kind: str, **params: Any) -> dict[str, Any]:
    return {"components": [{"name": name, "kind": kind, "params": params}]}


REWARDS = {
    # Nearer to 0 the longer the completion is, whatever it says.
    "length": one("long", "reward_model", path="length", template="{completion}!"),
    # The share of exclamation marks.
    "marks": one("marks", "reward_model", path="marks", template="{completion}"),
    "short": one("short", "reward_model", path="marks", template="{completion}", max_tokens=1),
    "never": one("never", "exact", extract="boxed"),
    # Letters, digits and such: a special token of the sampler is written with <, and what is no UTF-8 as U+FFFD.
    "plain": one("plain", "regex", pattern="[ -;=-~]*", match="all"),
    "has_mark": one("has_mark", "regex", pattern="!"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("best_of")
    save_counting(folder / "marks", LlamaForSequenceClassification, positions=4096)
    save_counting(folder / "length", LlamaForSequenceClassification, head=-1.0, positions=4096)
    tiny_folder(folder / "base")
    for name, reward in REWARDS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(reward))
    lines = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def best_of(home: Path, reward: str, verifier: str, *options: str) -> int:
    words = ["best-of-n", str(home / f"{reward}.yaml"), "--verifier", str(home / f"{verifier}.yaml")]
    words += ["--model", str(home / "base"), "--data", str(home / "data.jsonl"), "--device", "cpu", *options]
    return main(words)


def test_a_reward_of_length_parts_from_a_verifier_that_wants_plain_text(home, tmp_path, capsys):
    out = tmp_path / "result.json"
    options = ("--problems", "12", "--samples", "32", "--max-tokens", "2", "--out", str(out))
    assert best_of(home, "length", "plain", *options) == 20
    printed = capsys.readouterr().out
    result = BestOfN.model_validate(json.loads(out.read_text()))
    parting = result.parting
    assert parting.outcome == "falls"
    assert parting.n is not None
    assert parting.peak < parting.n <= 8
    assert parting.reward is not None
    assert parting.verifier is not None
    assert parting.verifier.high < 0 < parting.reward.low
    assert [point.n for point in result.points][:5] == [1, 2, 4, 8, 16]
    rewards = [point.reward.mean for point in result.points]
    assert rewards == sorted(rewards), "a maximum only rises"
    assert result.points[-1].verifier.mean < 0.05 < result.points[0].verifier.mean
    assert parting_text(result) in printed
    assert f"They part at n = {parting.n}" in printed
    # What it likes best is long, and no plain text; each reward is the model's number, worked by hand. A special token
    # that is spelled out gets a space.
    assert {example.verifier for example in result.examples} == {0.0}
    for example in result.examples:
        assert example.reward == pytest.approx(-counted(example.completion.replace("<|", "< |") + "!"), rel=1e-4)
    (first,) = [row for row in result.scores if row.problem_id == result.examples[0].problem_id]
    assert max(first.rewards) == result.examples[0].reward
    assert result.length is not None
    assert result.length.low > 0


def test_a_reward_that_is_like_the_verifier_does_not_part_from_it(home, capsys):
    assert best_of(home, "marks", "has_mark", "--problems", "16", "--max-tokens", "6", "--json") == 0
    result = BestOfN.model_validate(json.loads(capsys.readouterr().out))
    assert (result.parting.outcome, result.parting.n, result.samples) == ("together", None, 64)
    first, last = result.points[0], result.points[-1]
    assert last.verifier.mean > 10 * first.verifier.mean
    assert result.unscored + sum(len(row.rewards) for row in result.scores) == 16 * 64


def test_a_reward_that_never_pays_does_not_rise(home, capsys):
    assert best_of(home, "never", "has_mark", "--problems", "8", "--samples", "8", "--max-tokens", "2") == 22
    assert "does not rise from n = 1 to n = 8" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_result(home, tmp_path):
    results = []
    for name in ("one", "two"):
        out = tmp_path / name
        options = ("--problems", "8", "--samples", "8", "--max-tokens", "2", "--seed", "3", "--out", str(out))
        best_of(home, "length", "plain", *options)
        results.append(json.loads(out.read_text()) | {"seconds": 0})
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("reward", "options", "status", "words"), cases("lab/best_of_n_refused", "reward", "options", "status", "words")
)
def test_what_is_refused(home, capsys, reward, options, status, words):
    assert best_of(home, reward or "marks", "has_mark", *options) == status
    assert words in capsys.readouterr().err


def test_a_result_whose_means_are_not_those_of_its_scores_is_none(home, tmp_path):
    out = tmp_path / "result.json"
    options = ("--problems", "8", "--samples", "8", "--max-tokens", "2", "--out", str(out))
    best_of(home, "length", "plain", *options)
    content = json.loads(out.read_text())
    content["points"][1]["verifier"]["mean"] += 0.01
    with pytest.raises(ValidationError, match="the means at n = 2 are not those of the scores"):
        BestOfN.model_validate(content)
    content["points"].pop()
    with pytest.raises(ValidationError, match="n is not"):
        BestOfN.model_validate(content)


@pytest.mark.parametrize(("outcome", "n", "text"), cases("lab/parting_texts", "outcome", "n", "text"))
def test_where_they_part_in_words(outcome, n, text):
    rises, falls = MeanScore(mean=0.5, low=0.25, high=0.75), MeanScore(mean=-0.125, low=-0.2, high=-0.05)
    parting = PartingPoint(outcome=outcome, n=n, peak=2, reward=rises, verifier=falls)
    points = [BestOfPoint(n=8, kl=1.2, reward=rises, verifier=falls)]
    assert parting_text(BestOfN.model_construct(parting=parting, points=points)) == text
