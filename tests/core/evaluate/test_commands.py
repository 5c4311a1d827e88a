"""`grpo suite` and `grpo eval` with suites, through the real command."""

import json

import pytest

from grpo_core.cli.main import main
from grpo_core.records.types import EvalItem, EvalResult
from grpo_core.stats.quantiles import wilson
from tests.core.tiny import config, tiny_folder
from tests.tables import cases

GSM8K = '{"question": "2 + 2?", "answer": "#### 4"}\n{"question": "3 + 3?", "answer": "#### 6"}\n'


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_folder(folder / "base")
    texts = {
        "train.jsonl": '{"prompt": "a", "answer": "b"}\n',
        "heldout.jsonl": '{"prompt": "c", "answer": "d"}\n',
        "test.jsonl": GSM8K,
        "broken.jsonl": '{"question": "a"}\n',
        "nameless.jsonl": "",
        "nameless.suite.json": '{"name": "nameless"}',
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def ran(capsys, *words):
    status = main([str(word) for word in words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def suite(home):
    out = home / "sums.jsonl"
    words = ["suite", "convert", "gsm8k", home / "test.jsonl", "--out", out, "--name", "sums"]
    assert main([str(word) for word in words]) == 0
    return out


# ---------------------------------------------------------------------- grpo suite


def test_convert_writes_items_and_what_they_are_scored_by(suite):
    rows = [(row["id"], row["prompt"], row["target"]) for row in lines_of(suite)]
    assert rows == [("gsm8k-1", "2 + 2?", "4"), ("gsm8k-2", "3 + 3?", "6")]
    about = json.loads((suite.parent / "sums.suite.json").read_text(encoding="utf-8"))
    assert (about["name"], about["category"], about["scorer"]["kind"]) == ("sums", "performance", "number")


def test_check_shows_what_is_in_a_file(suite, tmp_path, capsys):
    status, out, _ = ran(capsys, "suite", "check", suite)
    assert status == 0
    assert "2 items, 2 clusters" in out
    assert "targets: fit the scorer number" in out
    assert "longest prompt: 6 characters, of item gsm8k-1" in out
    alone = tmp_path / "alone.jsonl"
    alone.write_text('{"id": "a", "prompt": "p", "target": "t", "slice": "s"}\n', encoding="utf-8")
    status, out, _ = ran(capsys, "suite", "check", alone)
    assert (status, "slice s: 1" in out, "not checked: no scorer is known" in out) == (0, True, True)
    status, _, error = ran(capsys, "suite", "check", alone, "--scorer", "number")
    assert (status, "line 1: item 'a': the reference answer 't' is not a number" in error) == (3, True)


def test_list_shows_each_starter_with_its_limits(capsys):
    status, out, _ = ran(capsys, "suite", "list")
    assert status == 0
    assert "builtin:jailbreak_robustness   56 items" in out
    listed = json.loads(ran(capsys, "suite", "list", "--json")[1])
    assert [starter["path"] for starter in listed][:2] == ["builtin:format", "builtin:hallucination"]
    assert all(starter["limits"].split(".")[0] in out and len(starter["sha256"]) == 64 for starter in listed)


# ---------------------------------------------------------------------- grpo eval


def test_a_model_alone(home, suite, tmp_path, capsys):
    words = ["eval", home / "base", "--suite", "builtin:multilingual", "--suite", suite, "--limit", 7]
    words += ["--max-tokens", 4, "--threads", 1, "--out", tmp_path / "out"]
    status, out, error = ran(capsys, *words)
    assert status == 0, error
    table = [line.split() for line in out.splitlines()[-3:]]
    assert table[0][:4] == ["suite", "score", "share", "95"]
    assert [row[0] for row in table[1:]] == ["multilingual", "sums"]
    records = lines_of(tmp_path / "out/answers.jsonl")
    kinds = [record["kind"] for record in records]
    assert kinds == ["eval_item"] * 7 + ["eval_result"] + ["eval_item"] * 2 + ["eval_result"]
    EvalItem.model_validate(records[0])
    EvalResult.model_validate(records[-1])
    results = json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8"))["results"]
    assert results[0]["slices"]["de"]["problems"] == 2
    sums = wilson(results[1]["correct"], 2)
    assert results[1]["interval"] == {"low": sums.low, "high": sums.high}
    # Seven items of two problems that all score 0 are worth two.
    assert results[0]["interval"]["high"] == wilson(0, 2).high


def test_json_is_all_that_stdout_holds(home, suite, capsys):
    status, out, error = ran(
        capsys, "eval", home / "base", "--suite", suite, "--max-tokens", 2, "--template", "Q: {prompt}", "--json"
    )
    assert status == 0
    report = json.loads(out)
    assert report["results"][0]["protocol"]["template"] == "Q: {prompt}"
    assert report["model"]["sha256"].keys() >= {"the base model's weights"}
    assert "evaluating 2/2" in error


def test_suites_added_to_a_config_s_own(home, suite, tmp_path, capsys):
    path = home / "run.yaml"
    path.write_text(config(eval={"path": "heldout.jsonl"}).to_yaml(), encoding="utf-8")
    status, out, error = ran(capsys, "eval", path, "--suite", suite, "--out", tmp_path / "e.jsonl")
    assert status == 0, error
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["heldout", "sums"]
    kinds = [row["kind"] for row in lines_of(tmp_path / "e.jsonl")]
    assert kinds == ["eval_item", "eval_result", "eval_item", "eval_item", "eval_result"]


@pytest.mark.parametrize(("words", "status", "match"), cases("suite_commands_refused", "words", "status", "match"))
def test_what_is_refused(home, suite, capsys, monkeypatch, words, status, match):
    monkeypatch.chdir(home)
    ended, _, error = ran(capsys, *words)
    assert (ended, match in error) == (status, True), error
    assert not (home / "x.jsonl").exists()
