"""`grpo lab` as a person or a worker runs it, and the sums of its result, worked by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from grpo_core.cli.main import main
from grpo_core.config.reward import RewardConfig
from grpo_core.errors import ConfigError
from grpo_core.lab import result
from grpo_core.lab.job import MAX_GIVEN_CHARS, options_of
from grpo_core.lab.result import LabResult, LabSample, Times, fitted, histogram, summary, times
from grpo_core.probe.report import ProbeReport
from grpo_core.records.types import ComponentScore
from tests.core.tiny import tiny_folder
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


def test_a_sample_has_the_prompt_as_the_policy_saw_it(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "base")
    options = {"problems": 2, "group_size": 2, "max_completion_tokens": 2, "template": "Q: {prompt}", "prefill": "A:"}
    job = {"kind": "sample", "reward": RIGHT, "model": {"path": "base"}, "data": problems(tmp_path), "options": options}
    result = LabResult.model_validate(lab(tmp_path, job))
    assert [sample.prompted for sample in result.samples] == [f"Q: {sample.prompt}A:" for sample in result.samples]
    assert all(sample.prompt in {f"{n} + 1 =" for n in range(6)} for sample in result.samples)


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


def sample(
    group: int, reward: float | None, *, right: bool | None = None, form: bool | None = None, **more: Any
) -> LabSample:
    components = {
        "right": ComponentScore(value=None if right is None else float(right), passed=right, seconds=0.25),
        "form": ComponentScore(value=None if form is None else float(form), passed=form, seconds=0.5),
    }
    texts = {"problem_id": f"p{group}", "prompt": "1+1", "answer": "2", "completion": "2"}
    return LabSample(**{**texts, "reward": reward, "components": components, "group": group, **more})


def reward_of(weights: dict[str, float]) -> RewardConfig:
    components = [{"name": name, "kind": "exact", "weight": weight} for name, weight in weights.items()]
    return RewardConfig.model_validate({"components": components})


def result_of(weights: dict[str, float], samples: list[LabSample], **more: Any) -> LabResult:
    return result.result_of(
        **{"kind": "try", "rubric_digest": "d", "seconds": 1.0, **more}, reward=reward_of(weights), samples=samples
    )


def test_groups_without_a_signal_by_their_cause() -> None:
    groups = [
        [sample(0, 1.2, right=True, form=True)] * 2,  # all right
        [sample(1, 0.2, right=False, form=True)] * 2,  # all wrong, though the form is right
        [sample(2, 0.0, right=False, form=False)] * 2,  # all wrong
        [sample(3, 1.0, right=True, form=False), sample(3, 1.0, right=False, form=True)],  # equal for another reason
        [sample(4, 1.0, right=True, form=True), sample(4, 0.0, right=False, form=True)],  # a signal
        [sample(5, 1.0, right=True, form=True), sample(5, None)],  # one reward is none to compare
        [sample(6, 0.5), sample(6, 0.5)],  # nothing judges
        [sample(7, 0.2, right=False, form=True), sample(7, 0.0, right=False, form=False)],  # shaping alone
    ]
    totals = result.no_signal([row for group in groups for row in group], reward_of({"right": 1.0, "form": 0.2}))
    assert (totals.groups, totals.of, totals.phantom) == (6, 7, 1)
    assert (totals.all_right, totals.all_wrong, totals.all_equal, totals.unscored) == (1, 2, 2, 1)


def test_shares_are_of_what_is_paid() -> None:
    """right: 2·1, 2·0, 2·1, mean 4/3. form: −1·1, −1·1, −1·0, mean −2/3. Sizes 4/3 and 2/3, so 2 to 1."""
    samples = [
        sample(0, 1.0, right=True, form=True),
        sample(1, -1.0, right=False, form=True),
        sample(2, 2.0, right=True, form=False),
    ]
    totals = result_of({"right": 2.0, "form": -1.0}, samples)
    assert totals.component_means == pytest.approx({"right": 4 / 3, "form": -2 / 3})
    assert totals.component_shares == pytest.approx({"right": 2 / 3, "form": 1 / 3})
    assert totals.passed == pytest.approx({"right": 2 / 3, "form": 2 / 3})
    assert totals.rewards.mean == pytest.approx(2 / 3)
    assert totals.rewards.std == pytest.approx(math.sqrt(7 / 3))  # deviations 1/3, -5/3, 4/3: 42/9 over 2
    assert (totals.rewards.min, totals.rewards.max, totals.rewards.n) == (-1.0, 2.0, 3)
    assert totals.seconds_per_call == {"right": Times(median=0.25, p95=0.25), "form": Times(median=0.5, p95=0.5)}
    assert totals.no_signal is None, "given answers are no groups"
    assert (totals.groups, totals.errors) == (3, {})


def test_errors_are_counted_by_class_and_component() -> None:
    failed = sample(0, None)
    broken = {
        **failed.components,
        "right": ComponentScore(value=None, error="timed out", error_class="timeout"),
        "form": ComponentScore(value=None, error="no class was named"),
    }
    samples = [failed.model_copy(update={"components": broken}), sample(1, 1.0, right=True, form=True)]
    totals = result_of({"right": 1.0, "form": 1.0}, samples)
    assert totals.errors == {"timeout": 1, "verifier": 1}
    assert totals.errors_by_component == {"right": 1, "form": 1}
    assert (totals.rewards.n, totals.component_means["right"]) == (1, 1.0)


def test_a_histogram_holds_every_value_once_and_what_few_numbers_come_to() -> None:
    bars = histogram([0.0, 0.05, 0.1, 1.0])
    assert (len(bars.edges), len(bars.counts)) == (21, 20)
    assert (bars.edges[0], bars.edges[-1]) == (0.0, 1.0)
    assert bars.edges[1] == pytest.approx(0.05)
    assert bars.counts == [1, 1, 1, *[0] * 16, 1]
    assert histogram([]).counts == []
    assert histogram([2.0, 2.0]).counts == [2]
    assert histogram([2.0, 2.0]).edges == [2.0, 2.0]
    assert summary([]).mean is None
    assert (summary([3.0]).mean, summary([3.0]).std) == (3.0, None)
    assert times([float(number) for number in range(1, 101)]) == Times(median=50.5, p95=95.0)
    assert times([7.0]) == Times(median=7.0, p95=7.0)


def test_one_that_is_too_large_keeps_its_numbers_and_says_what_is_missing() -> None:
    samples = [sample(group, 1.0, right=True, form=True, completion="x" * 1000) for group in range(20)]
    whole = result_of({"right": 1.0, "form": 1.0}, samples)
    assert fitted(whole) == whole
    small = fitted(whole, limit=20_000)
    assert len(small.model_dump_json(by_alias=True).encode()) <= 20_000
    assert 0 < small.texts_left_out < 20
    kept = 20 - small.texts_left_out
    assert [row.texts_left_out for row in small.samples] == [False] * kept + [True] * small.texts_left_out
    assert small.samples[0] == samples[0]
    assert (small.samples[-1].completion, small.samples[-1].reward) == ("", 1.0)
    assert (small.rewards, small.histogram) == (whole.rewards, whole.histogram)


def test_what_is_read_back_is_what_was_written() -> None:
    samples = [sample(0, 1.0, right=True, form=True)] * 2
    whole = result_of({"right": 1.0, "form": 1.0}, samples, kind="sample", group_size=2)
    totals = whole.model_dump(mode="json", by_alias=True)
    assert totals["schema"] == "cohort-lab/1"
    assert LabResult.model_validate(totals) == whole
    with pytest.raises(ValidationError):
        LabResult.model_validate({**totals, "schema": "cohort-lab/2"})
