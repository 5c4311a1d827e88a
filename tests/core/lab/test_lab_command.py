"""`grpo lab` as a person or a worker runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.cli import main
from grpo_core.errors import ConfigError
from grpo_core.lab.job import MAX_GIVEN_CHARS, options_of
from grpo_core.lab.result import LabResult
from grpo_core.probe.report import ProbeReport
from tests.tables import cases

RIGHT = {"components": [{"name": "right", "kind": "numeric", "weight": 2, "params": {"extract": "last_number"}}]}
TEXTS = {"texts": [{"prompt": "1+1", "answer": "2", "completion": text} for text in ("2", "3", "so 2.0")]}
TRY = {"kind": "try", "reward": RIGHT, "options": TEXTS}


def lab(folder: Path, job: dict[str, Any], *, status: int = 0) -> dict[str, Any]:
    """result.json, or error.json."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    assert main(["lab", str(folder / "job.yaml"), "--out", str(folder / "out")]) == status
    assert (folder / "out" / "result.json").exists() == (status == 0)
    assert (folder / "out" / "error.json").exists() == (status != 0)
    return json.loads((folder / "out" / ("error.json" if status else "result.json")).read_text())


def problems(folder: Path, **more: Any) -> dict[str, str]:
    lines = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": str(n + 1), **more} for n in range(6)]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"path": "data.jsonl"}


def test_given_texts(tmp_path: Path) -> None:
    result = LabResult.model_validate(lab(tmp_path, TRY))
    assert [sample.reward for sample in result.samples] == [2.0, 0.0, 2.0]
    assert [sample.group for sample in result.samples] == [0, 1, 2]
    assert result.passed == {"right": pytest.approx(2 / 3)}
    progress = json.loads((tmp_path / "out" / "progress.json").read_text())
    assert progress["phase"] == "scoring"


def test_rows_answer_for_themselves_or_by_their_reference(tmp_path: Path) -> None:
    reward = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "boxed"}}]}
    job = {"kind": "try", "reward": reward, "options": {"rows": 4}, "data": problems(tmp_path)}
    result = LabResult.model_validate(lab(tmp_path, job))
    assert [sample.reward for sample in result.samples] == [1.0] * 4
    assert {sample.origin for sample in result.samples} == {"reference"}
    assert result.form == "a LaTeX box"
    job["data"] = problems(tmp_path, completion="it is 3")
    job["reward"] = RIGHT
    result = LabResult.model_validate(lab(tmp_path, job))
    assert [(sample.completion, sample.reward) for sample in result.samples[:3]] == [
        ("it is 3", score) for score in (0, 0, 2)
    ]
    assert ({sample.origin for sample in result.samples}, result.form) == ({"row"}, None)


def test_a_sample_that_fails_is_told_and_ends_nothing(tmp_path: Path) -> None:
    """Also where a run would end by it."""
    texts = {"texts": [{"prompt": "1+1", "answer": "no number", "completion": "2"}, *TEXTS["texts"]]}
    reward = {**RIGHT, "on_error": "fail"}
    result = LabResult.model_validate(lab(tmp_path, {"kind": "try", "reward": reward, "options": texts}))
    assert [sample.reward for sample in result.samples] == [None, 2.0, 0.0, 2.0]
    assert sum(result.errors.values()) == 1


def test_a_probe_of_given_problems_and_of_its_own(tmp_path: Path) -> None:
    job: dict[str, Any] = {"kind": "probe", "reward": RIGHT, "options": {"problems": 3, "seed": 1}}
    own = ProbeReport.from_json(lab(tmp_path, job))
    assert (own.problems_source, own.problems) == ("builtin", 3)
    given = ProbeReport.from_json(lab(tmp_path, {**job, "data": problems(tmp_path)}))
    assert (given.problems_source, given.problems, given.problems_of) == ("data", 3, 6)


@pytest.mark.parametrize(("job", "status", "code", "word"), cases("lab/refused_jobs", "job", "status", "code", "word"))
def test_what_is_wrong_has_a_code_and_names_it(tmp_path, job, status, code, word):
    problems(tmp_path)
    lab(tmp_path, TRY)  # whose result is not to stand for the failure
    error = lab(tmp_path, {"reward": RIGHT, **job}, status=status)
    assert error["code"] == code
    assert word in error["message"]
    lab(tmp_path, TRY)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *cases("lab/refused_options", "kind", "options"),
        pytest.param("try", {"texts": [{"completion": ""}] * 201}, id="texts"),
        pytest.param("try", {"texts": [{"completion": "x" * 190_000}] * (MAX_GIVEN_CHARS // 190_000 + 1)}, id="chars"),
    ],
)
def test_options_have_limits(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        options_of(kind, options)
