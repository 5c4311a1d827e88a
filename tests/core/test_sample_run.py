"""Rejection sampling by the real command: the dataset of a run, killed and resumed too, and the run that keeps none."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config.kinds import config_from_file
from grpo_core.config.prompt import PromptConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.data.answers import encode_conversations
from grpo_core.data.prompts import PromptEncoder
from grpo_core.data.rejection import Choice
from grpo_core.data.sampled_dataset import find_sampled
from grpo_core.data.supervised import load_conversations
from grpo_core.errors import DataError, NothingKept
from grpo_core.files.dataset import SampledFacts
from grpo_core.files.run_folder import RunDir
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.runtime.progress import Progress
from grpo_core.trainer.groups import StepGroups
from grpo_core.trainer.sample import SampleTrainer
from grpo_core.trainer.sampled import StepBatch

from .runs import KILLED, Launched, forked, groups_of, names_of_steps, outcome_of, rows, samples_of, untimed

PLAIN: dict[str, Any] = {
    "kind": "sample",
    "model": {"path": "base"},
    "data": {"path": "train.jsonl"},
    # Of four digits about half are near enough to one.
    "reward": {
        "components": [{"name": "near", "kind": "numeric", "params": {"extract": "last_number", "tolerance": 4000}}]
    },
    "sampling": {"group_size": 8, "prompts_per_step": 2, "max_completion_tokens": 4},
    "filter": {"finished": False, "per_problem": 3},
    "engine": {"threads": 1},
}
PROBLEMS, STEPS = 7, 4
"""Of make_home's training file: 2 a step, 1 in the last."""
slow = pytest.mark.slow


def write(home: Path, name: str, **parts: Any) -> Path:
    path = home / f"{name}.yaml"
    path.write_text(yaml.safe_dump(PLAIN | parts), encoding="utf-8")
    return path


def sample(home: Path, out: Path, *words: str, fault: str = "", **parts: Any) -> int:
    return forked(["train", str(write(home, out.name, **parts)), "--out", str(out), *words], fault=fault)


def dataset_of(out: Path) -> tuple[bytes, bytes]:
    return (out / "dataset/rows.jsonl").read_bytes(), (out / "dataset/dataset.json").read_bytes()


def facts_of(out: Path) -> SampledFacts:
    """As whoever learns from it reads it, checked."""
    sampled = find_sampled(out / "dataset/rows.jsonl")
    assert sampled is not None
    return SampledFacts.model_validate(sampled.facts)


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dataset_of(out)[0].splitlines()]


def records_of(out: Path) -> list[Any]:
    """What a run says without times: the files that do not depend on salts."""
    totals = {name: value for name, value in outcome_of(out)["totals"].items() if name != "seconds"}
    return [*map(untimed, rows(out / "metrics.jsonl")), *map(untimed, groups_of(out)), totals, dataset_of(out)]


@pytest.fixture(scope="session")
def sampled(runs_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody killed. To be read."""
    out = tmp_path_factory.mktemp("sampled") / "run"
    assert sample(runs_home, out) == 0
    return out


def test_every_problem_once_in_the_order_of_the_file(sampled: Path) -> None:
    assert [group["prompt"] for group in groups_of(sampled)] == [f"say {letter}" for letter in "abcdefg"]
    assert [len(group["samples"]) for group in groups_of(sampled)] == [8] * PROBLEMS
    assert {sample["advantage"] for sample in samples_of(sampled)} == {0.0}
    outcome = outcome_of(sampled)
    assert (outcome["status"], outcome["steps_done"], outcome["steps_planned"]) == ("finished", STEPS, STEPS)
    assert outcome["totals"]["samples"] == 8 * PROBLEMS
    assert [row["count"] for row in rows(sampled / "commitments.jsonl")] == [16, 16, 16, 8]


def test_rows_are_those_that_the_filters_keep(sampled: Path) -> None:
    """Right ones, distinct but for white space, three of a problem at most; each counted once."""
    origins = [(row["from"]["problem_id"], row["from"]["sample"]) for row in lines_of(sampled)]
    by_problem: dict[str, dict[int, dict[str, Any]]] = {}
    counts = {"wrong": 0, "duplicate": 0, "over_quota": 0}
    for group in groups_of(sampled):
        right = [sample for sample in group["samples"] if sample["components"]["near"]["passed"]]
        distinct = {" ".join(sample["completion"].split()): sample for sample in reversed(right)}
        counts["wrong"] += 8 - len(right)
        counts["duplicate"] += len(right) - len(distinct)
        counts["over_quota"] += max(0, len(distinct) - 3)
        by_problem[group["problem_id"]] = {sample["index"]: sample for sample in distinct.values()}
    kept = sum(min(3, len(distinct)) for distinct in by_problem.values())
    assert 0 < kept < 8 * PROBLEMS
    assert len(origins) == kept
    for row, (problem, index) in zip(lines_of(sampled), origins, strict=True):
        assert row["completion"] == by_problem[problem][index]["completion"]
    totals = outcome_of(sampled)["totals"]
    assert totals["kept"] == kept
    assert {name: totals.get(f"dropped_{name}", 0) for name in counts} == counts
    (record,) = [row for row in rows(sampled / "events.jsonl") if row["kind"] == "dataset"]
    content = dataset_of(sampled)[0]
    assert record["sha256"] == hashlib.sha256(content).hexdigest()
    assert (record["rows"], record["size"], record["content"]) == (kept, len(content), "conversations")
    assert sum(record["counts"].values()) == 8 * PROBLEMS
    metrics = rows(sampled / "metrics.jsonl")
    assert metrics[-1]["metrics"]["dataset/rows"] == kept
    shares = [row["metrics"]["dataset/kept"] for row in metrics]
    of_steps = [sum(row["from"]["step"] == step for row in lines_of(sampled)) for step in range(1, STEPS + 1)]
    assert [share * 8 * problems for share, problems in zip(shares, (2, 2, 2, 1), strict=True)] == of_steps


def test_where_it_came_from_lies_next_to_the_rows(sampled: Path) -> None:
    facts = facts_of(sampled)
    manifest = json.loads((sampled / "manifest.json").read_text())
    assert facts.config_digest == manifest["config_digest"]
    assert facts.model["source"] == "base"
    problems = {row["from"]["problem_id"] for row in lines_of(sampled)}
    assert (facts.problems, facts.problems_sampled, facts.rows) == (len(problems), PROBLEMS, len(lines_of(sampled)))


def test_a_changed_file_is_refused(sampled: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sampled / "dataset", tmp_path / "dataset")
    (folder / "rows.jsonl").chmod(0o644)
    with (folder / "rows.jsonl").open("ab") as handle:
        handle.write(b"{}\n")
    with pytest.raises(DataError, match="is not the dataset"):
        find_sampled(folder / "rows.jsonl")


@dataclass(eq=False)
class Recording(SampleTrainer):
    """Keeps what was sampled, with its tokens, which no record holds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampled: dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def _keep(self, step: int, batch: StepBatch, groups: StepGroups, choices: list[Choice]) -> None:
        for group in batch.kept:
            for index, completion in enumerate(group.completions):
                self.sampled[group.prompted.problem.id, index] = (group.prompted.tokens, tuple(completion.tokens))
        super()._keep(step, batch, groups, choices)


@pytest.mark.parametrize("prefill", ["", "1"])
def test_fine_tuning_reads_back_the_tokens_that_were_sampled(runs_home: Path, tmp_path: Path, prefill: str) -> None:
    """Prompt, answer and its end; but for the rows that dataset.json counts, whose bytes are no text."""
    config = config_from_file(write(runs_home, "read-back", data={"path": "train.jsonl", "prefill": prefill}))
    assert isinstance(config, SampleConfig)
    run_dir, progress = RunDir.create(tmp_path / "run"), Progress(quiet=True)
    trainer = Recording(config, run_dir, base=runs_home, progress=progress)
    assert trainer.run().status == "finished"
    tokenizer = byte_tokenizer()
    conversations = load_conversations(tmp_path / "run/dataset/rows.jsonl")
    encoder, end = PromptEncoder(tokenizer, PromptConfig()), tokenizer.eos_token_id
    read = encode_conversations(
        conversations, encoder, end=end, turns="all", most=1000, drop_long=False, source="rows.jsonl"
    )
    other = 0
    for encoded, row in zip(read.conversations, lines_of(tmp_path / "run"), strict=True):
        prompt, completion = trainer.sampled[row["from"]["problem_id"], row["from"]["sample"]]
        (answer,) = encoded.rows
        ended = completion if completion[-1] == end else (*completion, end)  # fine-tuning teaches an end
        as_sampled = (*answer.prompt, *answer.completion) == (*prompt, *ended)
        # Text of a special token is learned as text.
        assert as_sampled != any(mark in row["completion"] for mark in ("\ufffd", *tokenizer.all_special_tokens))
        other += not as_sampled
    assert 0 < other == facts_of(tmp_path / "run").other_tokens < len(conversations)


@pytest.mark.parametrize(
    "point",
    [
        *("sampled:3", "recorded:4", "dataset:writing", "dataset:written"),
        *(pytest.param(f"{place}:{step}", marks=slow) for place in ("step", "updated") for step in range(1, STEPS + 1)),
    ],
)
def test_killed_and_resumed(runs_home: Path, tmp_path: Path, sampled: Path, point: str) -> None:
    out = tmp_path / "run"
    assert sample(runs_home, out, fault=point) == KILLED
    assert sample(runs_home, out, "--resume") == 0
    assert records_of(out) == records_of(sampled)


def test_resumed_elsewhere(runs_home: Path, tmp_path: Path, sampled: Path) -> None:
    """From a checkpoint alone, as a worker's next attempt does."""
    assert sample(runs_home, tmp_path / "run", fault="sampled:3") == KILLED
    newest = names_of_steps(tmp_path / "run")[-1]
    checkpoint = shutil.copytree(tmp_path / "run/checkpoints" / newest, tmp_path / newest)
    assert sample(runs_home, tmp_path / "other", "--resume-from", str(checkpoint)) == 0
    assert dataset_of(tmp_path / "other")[0] == dataset_of(sampled)[0]
    assert outcome_of(tmp_path / "other")["totals"]["kept"] == outcome_of(sampled)["totals"]["kept"]


def test_a_run_that_keeps_nothing_says_by_which_filter(runs_home: Path, tmp_path: Path) -> None:
    assert sample(runs_home, tmp_path / "run", filter={"min_reward": 2.0}) == NothingKept.exit_status
    outcome = outcome_of(tmp_path / "run")
    assert (outcome["status"], outcome["code"]) == ("failed", "nothing_kept")
    totals = outcome["totals"]
    assert totals["dropped_wrong"] + totals["dropped_low_reward"] == totals["samples"] == 8 * PROBLEMS
    assert f"low_reward {totals['dropped_low_reward']:.0f}" in outcome["message"]
    assert not (tmp_path / "run/dataset").exists()


@pytest.mark.parametrize("kind", ["pairs", "scores"])
def test_preferences(runs_home: Path, tmp_path: Path, kind: str) -> None:
    filters = {"filter": {"finished": False}} if kind == "pairs" else {"filter": {}}
    assert sample(runs_home, tmp_path / "run", rows=kind, **filters) == 0
    texts = {
        (group["problem_id"], sample["completion"]): sample
        for group in groups_of(tmp_path / "run")
        for sample in group["samples"]
    }
    lines = lines_of(tmp_path / "run")
    if kind == "scores":
        assert len(lines) == 8 * PROBLEMS
    for row in lines:
        problem = row["from"]["problem_id"]
        if kind == "scores":
            assert row["score"] == texts[problem, row["completion"]]["reward"]
        else:
            assert texts[problem, row["chosen"]]["components"]["near"]["passed"]
            assert not texts[problem, row["rejected"]]["components"]["near"]["passed"]
    facts = facts_of(tmp_path / "run")
    assert (facts.content, facts.rows_are) == ("preferences", kind)


@slow
def test_two_ranks_sample_what_one_does(runs_home: Path, tmp_path: Path, sampled: Path) -> None:
    config = write(runs_home, "ranks", engine={"threads": 1, "devices": 2, "device": "cpu"})
    launched = Launched(config, tmp_path / "run")
    assert launched.ended() == 0, launched.printed
    assert dataset_of(tmp_path / "run")[0] == dataset_of(sampled)[0]
