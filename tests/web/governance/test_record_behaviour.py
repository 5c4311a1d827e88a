"""What the record says of suites by category, of safety, contamination, energy and lineage."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from cohort.accounts.models import User
from cohort.catalog.models import BaseModel
from cohort.contamination.models import LaunchOverlap
from cohort.governance.models import Record
from cohort.governance.power import rated_watts
from cohort.governance.services import record_seal
from cohort.runs.models import Checkpoint, ImportedResult, Run
from grpo_core import records
from tests import sealed_run
from tests.web.governance.record_reading import said

pytestmark = pytest.mark.django_db(transaction=True)
Launch = Callable[..., Run]
Scores = Mapping[str, Sequence[float]]


def measured_on(launch: Launch, before: Scores, after: Scores, **more: Any) -> Any:
    run = launch(suites=list(before))
    return said(record_seal(run=sealed_run.finished(run, sealed_run.with_suites(run, before, after, **more))))


def test_each_category_says_what_its_suites_showed(launch: Launch) -> None:
    before = {"hallucination": [1.0] * 30 + [0.0] * 30, "tool_use": [1.0] * 60}
    record = measured_on(launch, before, {"hallucination": [1.0] * 60, "tool_use": [1.0] * 60})
    behaviour = record.behaviour
    assert behaviour.hallucination.value == {
        "suites": ["hallucination"],
        "verdicts": {"hallucination": "better"},
        "stands_in": "behaviour.performance",
    }
    assert behaviour.hallucination.text.startswith(
        "Starter: invented things among known ones, 60 problems: 50.0 % before, 100.0 % after; +50.0 points"
    )
    assert behaviour.tool_use.evidence == "recomputable"
    for name in ("refusal_calibration", "jailbreak_robustness", "harmful_capability", "multilingual", "format"):
        assert getattr(behaviour, name).text == "not evaluated"
    assert [one.suite for one in record.comparisons] == ["heldout", "hallucination", "tool_use"]
    assert behaviour.performance.text.startswith("Held-out problems, 100 problems")
    assert behaviour.performance.note.endswith("the comparisons of all suites, of the other categories too.")


def test_undecided_is_never_told_as_no_regression(launch: Launch) -> None:
    """20 items that change nothing: a fall by the margin of 5 points cannot be excluded."""
    scores = {"refusal_calibration": [1.0] * 10 + [0.0] * 10}
    found = measured_on(launch, scores, scores).behaviour.safety_regressions
    assert found.value["undecided"] == ["refusal_calibration"]
    assert (found.value["not_worse"], found.value["regressed"]) == ([], [])
    assert found.text.startswith("undecided: Starter: refusing neither too much nor too little (margin 5 points)")
    assert "not worse" not in found.text
    assert "harm by the margin is not excluded" in found.note
    assert "Nothing is known of hallucination, jailbreak robustness, harmful capability" in found.note


def test_a_suite_that_was_run_once_excludes_no_regression(launch: Launch) -> None:
    run = launch(suites=["hallucination"])
    told = sealed_run.with_suites(run, {"hallucination": [1.0] * 30}, {"hallucination": [1.0] * 30})
    told = [one for one in told if (getattr(one, "suite", ""), getattr(one, "phase", "")) != ("hallucination", "after")]
    behaviour = said(record_seal(run=sealed_run.finished(run, told))).behaviour
    assert behaviour.hallucination.text.endswith("; not evaluated after training")
    found = behaviour.safety_regressions
    assert (found.text, found.source, found.value["not_compared"]) == (
        "not evaluated", "not stated", ["hallucination"],
    )  # fmt: skip
    assert found.note.startswith("No safety suite was compared before and after, so none can be excluded: Starter")


def test_what_a_suite_cannot_tell_is_told_of_its_scorer(launch: Launch) -> None:
    """A suite of any category may have any scorer: one that asks for free text is not called multiple choice."""
    asked = {"category": "harmful_capability", "higher_is": "worse", "scorer": {"kind": "contains", "params": {}}}
    run = launch(suites=["harmful_capability"])
    config = json.loads(json.dumps(run.config))
    told = sealed_run.with_suites(run, {"harmful_capability": [0.0] * 9}, {"harmful_capability": [0.0] * 9})
    config["eval"]["suites"][0] |= asked
    Run.objects.filter(pk=run.pk).update(config=config)
    found = said(record_seal(run=sealed_run.finished(run, told))).behaviour.harmful_capability
    assert "ultiple choice" not in found.note


def test_a_suite_of_multiple_choice_says_so(launch: Launch) -> None:
    scores = {"harmful_capability": [0.0] * 9}
    assert "Of multiple choice" in measured_on(launch, scores, scores).behaviour.harmful_capability.note


def test_more_of_what_harms_is_a_regression(launch: Launch) -> None:
    before = {"harmful_capability": [0.0] * 100, "hallucination": [1.0] * 400}
    after = {"harmful_capability": [1.0] * 40 + [0.0] * 60, "hallucination": [1.0] * 400}
    found = measured_on(launch, before, after).behaviour.safety_regressions
    assert (found.value["regressed"], found.value["not_worse"]) == (["harmful_capability"], ["hallucination"])
    assert found.text.startswith("regressed: Starter: common knowledge of safety")
    assert found.source == "measured"


def test_what_of_a_suite_was_trained_on_is_told_with_the_score_without_it(launch: Launch) -> None:
    scores = {"multilingual": [1.0] * 10 + [0.0] * 10}
    overlap = {
        "heldout": sealed_run.touched(items=100),
        "multilingual": sealed_run.touched("multilingual-0", "multilingual-1", items=20),
    }
    record = measured_on(launch, scores, scores, overlap=overlap)
    decontamination = record.data.decontamination
    assert decontamination.text == (
        "heldout: 0 of 100 (0.0 %) items touched; multilingual: 2 of 20 (10.0 %) items touched"
    )
    assert [one["id"] for one in decontamination.value["overlap"]["multilingual"]["touched"]] == [
        "multilingual-0",
        "multilingual-1",
    ]
    assert decontamination.note.startswith("Searched for: equal texts, 13-grams, 8-grams and MinHash, letter case")
    contamination = record.behaviour.benchmark_contamination
    # 8 of the 18 that are left were right
    assert contamination.text.endswith(
        "Starter: ten sums in five languages: 2 of 20 (10.0 %) items overlap with the training file, "
        "44.4 % after training without them"
    )
    (suite,) = [one for one in record.comparisons if one.suite == "multilingual"]
    assert (suite.clean.touched, suite.clean.problems) == (2, 18)


def test_options_are_told_to_be_searched_for_where_they_were(launch: Launch) -> None:
    """A report of a trainer from before says nothing of them (the test above)."""
    report = sealed_run.touched(items=100)
    report["counts"]["options"] = 0
    record = measured_on(launch, {}, {}, overlap={"heldout": report})
    assert record.data.decontamination.note.startswith(
        "Searched for: equal texts, 13-grams, 8-grams, MinHash and options, letter case"
    )


def test_what_was_known_before_the_run_began_is_told_with_who_launched(launch: Launch, alice: User) -> None:
    run = launch()
    pair = {"with": "held out", "kind": "held-out dataset", "id": 1, "state": "found", "items": 2, "touched": 1}
    LaunchOverlap.objects.update_or_create(run=run, defaults={"by": alice, "pairs": [pair], "acknowledged": True})
    found = said(record_seal(run=sealed_run.finished(run))).data.decontamination
    assert found.text == "1 of 2 (50.0 %) held-out prompts are in the training file", "by the comparison itself"
    assert found.note.endswith(
        "Known before the run began (held out: 1 of 2 (50.0 %)); launched all the same by alice, who ticked that this "
        "was seen."
    )
    assert found.value["at_launch"]["pairs"] == [pair]


def test_results_of_other_tools_are_somebody_s_word(launch: Launch, alice: User) -> None:
    run = launch()
    ImportedResult.objects.create(
        run=run,
        tool="inspect",
        task="sums",
        phase="after",
        metric="accuracy",
        value=0.75,
        stderr=0.05,
        n=80,
        higher_is="better",
        file_name="sums.eval",
        file_sha256="ab" * 32,
        by=alice,
    )
    found = said(record_seal(run=sealed_run.finished(run))).behaviour.imported
    assert (found.source, found.evidence) == ("stated by alice", "stated")
    assert found.text == "sums accuracy 0.75 ± 0.05 (inspect, after training)"
    assert "not checked" in found.note


# ---------------------------------------------------------------------- energy


def with_outcome(run: Run, device: str, **totals: float) -> Any:
    found = sealed_run.whole(run)
    for place, one in enumerate(found):
        if isinstance(one, records.Manifest):
            found[place] = one.model_copy(update={"platform": {**one.platform, "device": device}})
        if isinstance(one, records.Outcome):
            found[place] = one.model_copy(update={"totals": {**one.totals, **totals}})
    return said(record_seal(run=sealed_run.finished(run, found))).budget.energy


def test_energy_is_measured_estimated_or_not_measured(launch: Launch) -> None:
    measured = with_outcome(launch(), "NVIDIA H200", energy_joules=7200.0)
    assert (measured.text, measured.value["estimated"], measured.source) == ("7.2 kJ", False, "measured")
    estimated = with_outcome(launch(name="b"), "NVIDIA H200")
    assert estimated.value["estimated"] is True
    assert estimated.value["rated_watts"] == 700
    assert estimated.text.startswith("estimated: about ")
    assert "No meter was read." in estimated.note
    unknown = with_outcome(launch(name="c"), "some device")
    assert (unknown.text, unknown.value, unknown.source) == ("not measured", None, "not stated")


def test_rated_power_is_of_devices_that_are_known() -> None:
    assert rated_watts("NVIDIA H100 PCIe") == 350
    assert rated_watts("NVIDIA H100 80GB HBM3") == 700
    assert rated_watts("NVIDIA A100-SXM4-80GB") == 400
    assert rated_watts("cpu") is None


# ---------------------------------------------------------------------- lineage


def test_a_run_on_another_s_output_names_it(launch: Launch, base_model: BaseModel) -> None:
    first = launch(name="the first")
    record: Record = sealed_run.sealed(first)
    weights = {"model.safetensors": {"size": 96, "sha256": "9" * 64}}  # what the first run wrote
    BaseModel.objects.filter(pk=base_model.pk).update(name="of the first")
    made = BaseModel.objects.create(
        project=base_model.project, name="output", path="output", weights=weights, weights_digest="8" * 64
    )
    second = launch(name="the second", base_model=made)
    told = [
        one.model_copy(update={"model": {**one.model, "provenance": None}})
        if isinstance(one, records.Manifest)
        else one
        for one in sealed_run.whole(second)
    ]
    ended = sealed_run.finished(second, told)
    # It learned nothing: what it wrote is what it began from, and its node's clock is behind.
    Checkpoint.objects.filter(run=second).update(at=sealed_run.AT + timedelta(seconds=1))
    found = said(record_seal(run=ended))
    (earlier,) = found.subject.lineage.value["earlier_runs"]
    assert (earlier["run"], earlier["step"], earlier["seal"]) == (first.pk, 3, record.seal)
    assert found.subject.lineage.text.startswith(
        f"its base model is what run {first.pk}, the first, wrote after step 3"
    )
    kinds = [(one["kind"], one["known_by"]) for one in found.subject.pipeline.value]
    assert kinds == [
        ("cold_start", "the model folder's cold_start.json"),
        ("grpo", "measured"),
        ("grpo", "measured"),
    ]
    assert found.subject.pipeline.text.endswith("3. this run: GRPO, 3 steps")


def test_without_a_digest_nothing_is_said_of_earlier_runs(launch: Launch, base_model: BaseModel) -> None:
    run = launch()
    BaseModel.objects.filter(pk=base_model.pk).update(weights={}, provenance=None)
    found = said(record_seal(run=sealed_run.finish(sealed_run.claim(run), end="failed", code="x"))).subject.lineage
    assert (found.text, found.source) == ("not measured", "not stated")
    assert found.note.startswith("Earlier runs were not looked for")


def test_a_base_model_from_elsewhere_has_no_earlier_run(launch: Launch) -> None:
    found = said(sealed_run.sealed(launch())).subject.lineage
    assert found.value["earlier_runs"] == []
    assert found.text.startswith("no earlier run of this project wrote the base model's weights")


def test_every_completion_is_committed_to(launch: Launch) -> None:
    """Three steps of two groups of four, one group of each kept."""
    found = said(sealed_run.sealed(launch())).rejected.commitments
    assert (found.value["leaves"], found.value["steps"], found.value["superseded"]) == (24, 3, 0)
    assert len(found.value["run_root"]) == 64
    assert found.evidence == "recomputable"
