"""`grpo lab` as a person or a worker runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.lab.job import MAX_GIVEN_CHARS, Job, options_of
from grpo_core.lab.result import LabResult
from grpo_core.probe.report import ProbeReport
from grpo_core.rewards import Rubric

RIGHT = {"components": [{"name": "right", "kind": "numeric", "weight": 2, "params": {"extract": "last_number"}}]}
TEXTS = {"texts": [{"prompt": "1+1", "answer": "2", "completion": text} for text in ("2", "3", "so 2.0")]}


def lab(folder: Path, job: dict[str, Any], *, status: int = 0) -> dict[str, Any]:
    """result.json, or error.json."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    words = [sys.executable, "-P", "-m", "grpo_core.cli", "lab", "job.yaml", "--out", "out"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "out" / "result.json").exists() == (status == 0)
    told: dict[str, Any] = json.loads((folder / "out" / ("error.json" if status else "result.json")).read_text())
    return told


def problems(folder: Path, **more: Any) -> dict[str, str]:
    lines = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": str(n + 1), **more} for n in range(6)]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"path": "data.jsonl"}


def test_given_texts(tmp_path: Path) -> None:
    told = LabResult.model_validate(lab(tmp_path, {"kind": "try", "reward": RIGHT, "options": TEXTS}))
    assert [one.reward for one in told.samples] == [2.0, 0.0, 2.0]
    assert [one.group for one in told.samples] == [0, 1, 2]
    assert told.passed == {"right": pytest.approx(2 / 3)}
    progress = json.loads((tmp_path / "out" / "progress.json").read_text())
    assert progress["phase"] == "scoring"


def test_rows_answer_for_themselves_or_by_their_reference(tmp_path: Path) -> None:
    reward = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "boxed"}}]}
    job = {"kind": "try", "reward": reward, "options": {"rows": 4}, "data": problems(tmp_path)}
    told = LabResult.model_validate(lab(tmp_path, job))
    assert [one.reward for one in told.samples] == [1.0] * 4
    assert {one.origin for one in told.samples} == {"reference"}
    assert told.form == "a LaTeX box"
    job["data"] = problems(tmp_path, completion="it is 3")
    job["reward"] = RIGHT
    told = LabResult.model_validate(lab(tmp_path, job))
    assert [(one.completion, one.reward) for one in told.samples[:3]] == [
        ("it is 3", 0.0),
        ("it is 3", 0.0),
        ("it is 3", 2.0),
    ]
    assert ({one.origin for one in told.samples}, told.form) == ({"row"}, None)


def test_a_sample_that_fails_is_told_and_ends_nothing(tmp_path: Path) -> None:
    """Also where a run would end by it."""
    texts = {"texts": [{"prompt": "1+1", "answer": "no number", "completion": "2"}, *TEXTS["texts"]]}
    reward = {**RIGHT, "on_error": "fail"}
    told = LabResult.model_validate(lab(tmp_path, {"kind": "try", "reward": reward, "options": texts}))
    assert [one.reward for one in told.samples] == [None, 2.0, 0.0, 2.0]
    assert sum(told.errors.values()) == 1


def test_a_probe_of_given_problems_and_of_its_own(tmp_path: Path) -> None:
    job: dict[str, Any] = {"kind": "probe", "reward": RIGHT, "options": {"problems": 3, "seed": 1}}
    own = ProbeReport.from_json(lab(tmp_path, job))
    assert (own.problems_source, own.problems) == ("builtin", 3)
    given = ProbeReport.from_json(lab(tmp_path, {**job, "data": problems(tmp_path)}))
    assert (given.problems_source, given.problems, given.problems_of) == ("data", 3, 6)


@pytest.mark.parametrize(
    ("job", "status", "code", "words"),
    [
        ({"kind": "walk", "reward": RIGHT}, 2, "config_error", 'kind: "walk" is not one of'),
        ({"kind": "try", "reward": RIGHT, "options": {"rows": 3}}, 2, "config_error", "rows are of a dataset"),
        ({"kind": "try", "reward": RIGHT}, 2, "config_error", "give either texts to score or a number of rows"),
        ({"kind": "sample", "reward": RIGHT}, 2, "config_error", "to sample, a job needs data and a model"),
        (
            {"kind": "try", "reward": RIGHT, "options": {"rows": 3}, "data": {"path": "none.jsonl"}},
            3,
            "data_error",
            "no such data file",
        ),
        (
            {"kind": "sample", "reward": RIGHT, "data": {"path": "data.jsonl"}, "model": {"path": "acme/none"}},
            4,
            "model_error",
            "no model folder 'acme/none'",
        ),
        (
            {"kind": "try", "reward": {"components": [{"name": "a", "kind": "regex"}]}, "options": TEXTS},
            2,
            "config_error",
            "pattern",
        ),
    ],
)
def test_what_is_wrong_is_told_in_words(
    tmp_path: Path, job: dict[str, Any], status: int, code: str, words: str
) -> None:
    problems(tmp_path)
    told = lab(tmp_path, job, status=status)
    assert told["code"] == code
    assert words in told["message"]


def test_a_result_of_before_does_not_stand_for_a_failure(tmp_path: Path) -> None:
    lab(tmp_path, {"kind": "try", "reward": RIGHT, "options": TEXTS})
    lab(tmp_path, {"kind": "try", "reward": RIGHT}, status=2)
    lab(tmp_path, {"kind": "try", "reward": RIGHT, "options": TEXTS})
    assert not (tmp_path / "out" / "error.json").exists()


def test_options_have_limits() -> None:
    from grpo_core.errors import ConfigError

    text = {"completion": "x" * 190_000}
    for kind, told in (
        ("try", {"texts": [{"completion": ""}] * 201}),
        ("try", {"texts": [text] * (MAX_GIVEN_CHARS // 190_000 + 1)}),
        ("try", {"texts": [{"completion": ""}], "rows": 2}),
        ("sample", {"group_size": 1}),
        ("sample", {"problems": 257}),
        ("sample", {"problems": 256, "group_size": 17}),
        ("sample", {"template": "no place"}),
        ("sample", {"temperature": 0}),
        ("probe", {"problems": 0}),
        ("probe", {"surprise": 1}),
    ):
        with pytest.raises(ConfigError):
            options_of(kind, told)  # type: ignore[arg-type]


def test_checking_a_job_loads_no_torch() -> None:
    code = "import sys, grpo_core.lab.job, grpo_core.lab.result; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert Job.model_validate({"kind": "probe", "reward": RIGHT}).device == "cpu"


def test_every_job_of_the_page_is_one(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "lab-command.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    kinds = []
    for block in blocks:
        file = tmp_path / "job.yaml"
        file.write_text(block)
        job = Job.from_file(file)
        Rubric(job.reward)
        kinds.append(job.kind)
    assert kinds == ["try", "try", "sample", "probe", "estimate"]
