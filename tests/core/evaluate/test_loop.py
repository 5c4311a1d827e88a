"""Suites before and after training, through the real command on a tiny model."""

import json
import os
import re
import subprocess
import sys

import pytest

from grpo_core.model.tiny import TinyShape
from grpo_core.rewards.kinds import exact
from grpo_core.trainer.inputs import load_inputs
from tests.core.runs import KILLED, forked, result, rows, train_here, write_problems
from tests.core.tiny import config, tiny_folder
from tests.tables import cases

SHAPE = TinyShape(hidden=32, layers=2, heads=2, feed_forward=64, context=1024)
ITEMS = [
    {"id": "one", "prompt": "say z", "target": "k", "slice": "new", "cluster": "c1"},
    {"id": "two", "prompt": "please say z", "target": "k", "slice": "new", "cluster": "c1"},
    {"id": "three", "prompt": "say a", "target": "k", "slice": "trained on"},
]
MINE = {"name": "mine", "title": "My own", "version": 3, "path": "mine.jsonl", "category": "performance"} | {
    "scorer": {"kind": "exact"},
    "max_completion_tokens": 1,
}
FORMAT = {"path": "builtin:format", "limit": 5}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_folder(folder / "base", shape=SHAPE)
    write_problems(folder / "train.jsonl", [f"say {letter}" for letter in "abcdefghijklmnop"])
    write_problems(folder / "heldout.jsonl", [f"say {letter}" for letter in "qrst"])
    write(folder / "mine.jsonl", ITEMS)
    return folder


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def parts_of(suites=(MINE, FORMAT), **parts):
    """Of a run whose evaluation samples, so that seeds matter."""
    return {
        "sampling": {"group_size": 16, "prompts_per_step": 4, "max_completion_tokens": 4},
        "optim": {"steps": 2, "lr": 0.01},
        "eval": {"path": "heldout.jsonl", "temperature": 1.0, "samples_per_problem": 2, "suites": list(suites)},
        "traces": {"groups_per_step": 1},
        **parts,
    }


def config_file(home, name, **parts):
    path = home / f"{name}.yaml"
    path.write_text(config(**parts_of(**parts)).to_yaml(), encoding="utf-8")
    return path


def train(home, out, suites=(MINE, FORMAT), **parts):
    return train_here(home, out, **parts_of(suites, **parts))


def items(out, phase, suite):
    records = [row for row in rows(out / "evals" / f"{phase}.jsonl") if row["suite"] == suite]
    assert records[-1]["kind"] == "eval_result"
    return records[:-1], records[-1]


def untimed(lines):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def run(home, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert train(home, out) == 0
    return out


def test_every_suite_is_answered_before_and_after(run):
    for phase in ("before", "after"):
        results = [row for row in rows(run / "evals" / f"{phase}.jsonl") if row["kind"] == "eval_result"]
        assert [(row["suite"], row["problems"]) for row in results] == [("heldout", 4), ("mine", 3), ("format", 5)]
        answered, measured = items(run, phase, "mine")
        for row, item in zip(answered, ITEMS, strict=True):
            cluster = item.get("cluster", "")
            assert (row["problem_id"], row["slice"], row["cluster"]) == (item["id"], item["slice"], cluster)
            assert row["prompt"] == item["prompt"]
            assert (row["answer"], row["tokens"], row["error"]) == ("k", 1, None)
        assert measured["correct"] == sum(row["score"] for row in answered)
    heldout, _ = items(run, "after", "heldout")
    assert {(row["slice"], row["cluster"]) for row in heldout} == {("", "")}


def test_protocol_and_manifest_are_complete(run):
    for suite, tokens in (("heldout", 4), ("mine", 1), ("format", 4)):
        before, after = (items(run, phase, suite)[1]["protocol"] for phase in ("before", "after"))
        assert before == after
        assert {"template", "temperature", "seed", "items_digest", "scorer_digest"} <= before.keys()
        assert (before["max_completion_tokens"], before["samples_per_problem"]) == (tokens, 2)
    protocol = items(run, "before", "mine")[1]["protocol"]
    assert (protocol["suite_version"], protocol["title"], protocol["scorer"]) == (3, "My own", "exact")
    data = json.loads((run / "manifest.json").read_text())["data"]
    mine = data["suites"]["mine"]
    assert (mine["items"], mine["clusters"], mine["version"]) == (3, 2, 3)
    assert mine["items_digest"] == protocol["items_digest"]
    assert mine["prompt_tokens"]["max"] == len("please say z")
    assert data["overlap"].keys() == {"heldout", "mine", "format"}
    # "say a" is trained on: the same words.
    assert [item["id"] for item in data["overlap"]["mine"]["touched"]] == ["three"]
    assert data["overlap"]["heldout"]["touched"] == []


def test_options_of_a_suite_are_compared_with_the_problems_that_are_trained_on(home):
    """The options alone are copied, in another order; the question is another."""
    options = ["a key that opens every door", "a key that opens no door", "a door that wants no key"]
    write(home / "doors.jsonl", [{"id": "d", "prompt": "say x", "choices": options, "target": 1}])
    write(home / "copied.jsonl", [{"prompt": f"say {'; '.join(options[::-1])}", "answer": "k"}])
    doors = {"name": "doors", "path": "doors.jsonl", "category": "performance", "scorer": {"kind": "choice"}}
    settings = {"data": {"path": "copied.jsonl"}, "eval": {"path": "heldout.jsonl", "suites": [doors]}}
    overlap = load_inputs(config(**settings), base=home, learning=False).overlap()
    assert [(item["id"], list(item["by"])) for item in overlap["doors"]["touched"]] == [("d", ["options"])]
    assert overlap["heldout"]["counts"]["options"] == 0


def test_the_same_seed_gives_the_same_completions_and_the_log_names_each_suite(run, home, tmp_path, capsys):
    assert train(home, tmp_path / "again") == 0
    log = capsys.readouterr().out
    assert "16 problems, 4 held out, 8 items of 2 suites" in log
    assert "evaluating_before 7/12 · items answered, in mine" in log
    assert "evaluating_before 12/12 · items answered, in format" in log
    for score in ("mine before: ", "format after: ", "before mine: "):  # the last in the end's summary
        assert score in log
    assert log.count("95 % interval") == 4 + 6
    phases = [row for row in rows(run / "events.jsonl") if row["kind"] == "phase"]
    assert [row["total"] for row in phases if row["phase"].startswith("evaluating")] == [12, 12]
    for phase in ("before", "after"):
        assert untimed(rows(tmp_path / "again/evals" / f"{phase}.jsonl")) == untimed(rows(run / f"evals/{phase}.jsonl"))
    assert train(home, tmp_path / "other", seed=1) == 0
    assert items(tmp_path / "other", "before", "mine")[0] != items(run, "before", "mine")[0]


def test_suites_change_nothing_else(run, home, tmp_path):
    """Held-out problems and weights are those of a run without suites, and a suite's completions those of a run with
    that suite alone."""
    assert train(home, tmp_path / "none", suites=()) == 0
    assert train(home, tmp_path / "alone", suites=(FORMAT,)) == 0
    without, alone, both = result(tmp_path / "none"), result(tmp_path / "alone"), result(run)
    assert without.weights == alone.weights == both.weights
    assert without.metrics == both.metrics
    for phase in ("before", "after"):
        for name, suite in (("none", "heldout"), ("alone", "heldout"), ("alone", "format")):
            assert items(tmp_path / name, phase, suite)[0] == items(run, phase, suite)[0]


def test_a_scorer_that_raises_is_counted_and_does_not_end_the_run(home, tmp_path, monkeypatch):
    score = exact.score

    def breaks(sample, params):
        if sample.problem.id == "two" and sample.completion:  # an empty one checks the item
            raise KeyError("no such word")
        return score(sample, params)

    monkeypatch.setattr(exact, "score", breaks)
    assert train(home, tmp_path / "run", eval={"suites": [MINE]}) == 0
    assert json.loads((tmp_path / "run/manifest.json").read_text())["data"]["eval"] is None  # suites alone are enough
    for phase in ("before", "after"):
        answered, measured = items(tmp_path / "run", phase, "mine")
        assert [row["error"] for row in answered] == [None, "KeyError: 'no such word'", None]
        assert answered[1]["score"] == 0
        assert measured["errors"] == 1


# ---------------------------------------------------------------------- resumed


def test_a_resumed_run_does_not_evaluate_before_again(run, home, tmp_path):
    out, path = tmp_path / "run", config_file(home, "onward", checkpoints={"every": 1})
    assert forked(["train", str(path), "--out", str(out)], fault="updated:2") == KILLED
    before = (out / "evals/before.jsonl").read_bytes()
    assert forked(["train", str(path), "--out", str(out), "--resume"]) == 0
    assert (out / "evals/before.jsonl").read_bytes() == before
    assert untimed(rows(out / "evals/after.jsonl")) == untimed(rows(run / "evals/after.jsonl"))
    phases = [row["phase"] for row in rows(out / "events.jsonl") if row["kind"] == "phase"]
    assert phases.count("evaluating_before") == 1


def test_a_suite_that_changed_stops_a_run_from_being_resumed(home, tmp_path):
    path = config_file(home, "changed", checkpoints={"every": 1})
    out, log = tmp_path / "run", tmp_path / "log"
    assert forked(["train", str(path), "--out", str(out)], fault="updated:2") == KILLED
    try:
        write(home / "mine.jsonl", [{**ITEMS[0], "target": "j"}, *ITEMS[1:]])
        assert forked(["train", str(path), "--out", str(out), "--resume"], log=log) == 7
    finally:
        write(home / "mine.jsonl", ITEMS)
    assert "suite mine changed" in log.read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_ranks_answer_the_same(run, home, tmp_path):
    out, path = tmp_path / "run", config_file(home, "two-ranks", engine={"threads": 1, "devices": 2})
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "grpo_core.cli.main"]
    done = subprocess.run(
        [sys.executable, *launcher, "train", str(path), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert untimed(rows(out / "evals/before.jsonl")) == untimed(rows(run / "evals/before.jsonl"))
    assert json.loads((out / "manifest.json").read_text())["data"]["overlap"].keys() == {"heldout", "mine", "format"}


def test_scorers_read_the_prefill_as_rewards_do(home, tmp_path):
    write(home / "opened.jsonl", [{"id": "one", "prompt": "say z", "target": {"regex": r"\(.*"}}])
    opened = {**MINE, "path": "opened.jsonl", "scorer": {"kind": "format"}}
    assert train(home, tmp_path / "run", [opened], data={"path": "train.jsonl", "prefill": "("}) == 0
    ((item,), measured) = items(tmp_path / "run", "before", "mine")
    assert (item["score"], measured["correct"]) == (1, 1)
    assert not item["completion"].startswith("(")


# ---------------------------------------------------------------------- bad input


FIELDS = ("change", "parts", "status", "match")


@pytest.mark.parametrize(FIELDS, cases("suite_runs_refused", *FIELDS))
def test_a_suite_that_is_not_right_is_refused_before_anything_runs(
    home, tmp_path, capsys, change, parts, status, match
):
    assert train(home, tmp_path / "run", [{**MINE, **(change or {})}], **(parts or {})) == status
    assert re.search(match, capsys.readouterr().err, re.DOTALL)
    assert not list((tmp_path / "run").glob("evals/*"))
    assert not (tmp_path / "run/manifest.json").exists()
