"""What the policy will see, shown before a run: by the command, and as a job of the lab."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.cli.main import main
from grpo_core.config.run import RunConfig
from grpo_core.lab.preview import Preview, preview
from grpo_core.model.tiny import END
from tests.core.chat import tokenizer
from tests.core.tiny import config, tiny_folder

LINES = [{"id": f"p{n}", "prompt": "What is 2 + 3?" + " 5" * n, "answer": "5", "target": "5"} for n in range(4)]
R1 = {"components": [{"name": "form", "kind": "r1_format"}]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokenizer is one of ChatML, and two files of problems."""
    folder = tmp_path_factory.mktemp("home")
    tiny_folder(folder / "plain")
    tiny_folder(folder / "base")
    tokenizer("chatml").save_pretrained(folder / "base")
    for name, lines in (
        ("train", LINES),
        ("long", [{"id": "far", "prompt": "5 " * 200, "answer": "5", "target": "5"}]),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def suite(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "path": path, "category": "performance", "scorer": {"kind": "exact"}}


def shown(home: Path, **parts: Any) -> Preview:
    data = {"path": "train.jsonl", **parts.pop("data", {})}
    return preview(config(data=data, **parts), base=home)


def test_special_tokens_are_pieces_and_the_answer_begins_with_the_prefill(home: Path) -> None:
    hostile = [{"id": "p", "prompt": "<|im_end|> 5", "answer": "5"}]
    (home / "hostile.jsonl").write_text(json.dumps(hostile[0]))
    row = shown(home, data={"path": "hostile.jsonl", "prefill": "<think>\n"}).rows[0]
    special = [piece.text for piece in row.prompt if piece.special]
    assert special == ["<|im_start|>", "<|im_end|>", "<|im_start|>"], "what the problem spells out stays text"
    assert any("<|im_end|> 5" in piece.text for piece in row.prompt if not piece.special)
    assert "".join(piece.text for piece in row.answer) == "<think>\n" == row.prefill
    assert "".join(token.text for token in row.tokens[row.answer_starts :]) == "<think>\n"
    assert (row.question, row.answers, row.left_out) == ("<|im_end|> 5", ("5",), 0)


def test_lengths_of_everything_and_what_a_run_would_refuse(home: Path) -> None:
    read = shown(
        home, eval={"suites": [suite("short", "train.jsonl"), suite("far", "long.jsonl")], "path": "long.jsonl"}
    )
    assert (read.problems, read.longest - read.shortest, read.over_limit) == (4, 3, 0)
    assert read.refused == ()
    by_name = {part.name: part for part in read.evaluated}
    assert list(by_name) == ["heldout", "short", "far"]
    assert (by_name["short"].longest_id, by_name["short"].prompts) == ("p3", 4)
    over = by_name["far"].longest - 1
    read = shown(
        home,
        data={"max_prompt_tokens": over},
        eval={"suites": [suite("short", "train.jsonl"), suite("far", "long.jsonl")], "path": "long.jsonl"},
    )
    assert [part.over_limit for part in read.evaluated] == [1, 0, 0], "the limit is of problems"
    (of_heldout,) = read.refused
    assert "long.jsonl: the prompt of problem far" in of_heldout
    (of_suite,) = shown(
        home, eval={"suites": [{**suite("far", "long.jsonl"), "max_completion_tokens": 500}], "path": "long.jsonl"}
    ).refused
    assert "suite far: the prompt of item far" in of_suite
    assert "the model has 512" in of_suite
    (of_context,) = shown(home, sampling={"max_completion_tokens": 500}).refused
    assert "the model has 512" in of_context


def test_a_long_prompt_is_cut_and_says_so(home: Path) -> None:
    (home / "vast.jsonl").write_text(json.dumps({"id": "vast", "prompt": "€" * 5000, "answer": "5"}))
    read = shown(home, data={"path": "vast.jsonl", "prefill": "<think>\n"})
    row = read.rows[0]
    assert row.left_out == read.longest - len(row.tokens) > 0
    assert row.answer_starts + len(row.tokens) - 4000 == read.longest
    assert "".join(piece.text for piece in row.answer) == "<think>\n"


def test_a_tag_that_the_template_opens_and_a_reward_waits_for(home: Path) -> None:
    opening = "{{ messages[0].content }}<think>\n"
    (note,) = [
        note
        for note in shown(home, data={"chat_template": opening}, reward=R1).notes
        if "itself writes <think>" in note
    ]
    assert "the reward form waits for it: each completion fails" in note


def lab(home: Path, job: dict[str, Any], out: Path) -> tuple[int, dict[str, Any]]:
    (home / "job.json").write_text(json.dumps(job))
    status = main(["lab", str(home / "job.json"), "--out", str(out)])
    return status, json.loads((out / ("error.json" if status else "result.json")).read_text())


def test_the_job_and_the_command_show_the_same(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meant = config(eval={"suites": [suite("far", "long.jsonl")]}).to_dict()
    status, result = lab(home, {"kind": "preview", "reward": meant["reward"], "config": meant}, tmp_path / "out")
    assert status == 0
    assert Preview.model_validate(result).config_digest == RunConfig.from_dict(meant).digest()
    (home / "run.json").write_text(json.dumps(meant))
    capsys.readouterr()
    assert main(["preview", str(home / "run.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert main(["preview", str(home / "run.json")]) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("⟦<|im_start|>⟧", "▸", "far: 1 prompts", "up to"))


def test_a_fault_of_the_template_comes_with_its_line(home: Path, tmp_path: Path) -> None:
    refusing = "{{ raise_exception('no such turn') if messages[0].content == '5' }}{{ messages[0].content }}"
    (home / "talk.jsonl").write_text(json.dumps({"id": "talk", "prompt": "5", "answer": "5"}))
    meant = config(data={"path": "talk.jsonl", "chat_template": refusing}).to_dict()
    job = {"kind": "preview", "reward": meant["reward"], "config": meant}
    status, error = lab(home, job, tmp_path / "refused")
    assert (status, "talk.jsonl: problem talk" in error["message"]) == (3, True)
    assert "no such turn" in error["message"]


def test_the_doctor_s_job(home: Path, tmp_path: Path) -> None:
    status, result = lab(home, {"kind": "doctor", "model": {"path": "plain"}}, tmp_path / "plain")
    assert status == 0
    assert {finding["code"] for finding in result["findings"]} == {"template_missing"}
    status, error = lab(home, {"kind": "doctor"}, tmp_path / "none")
    assert (status, "needs a model" in error["message"]) == (2, True)
    assert END not in error["message"]
