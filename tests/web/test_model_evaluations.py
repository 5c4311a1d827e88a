"""Evaluations of base models outside of runs: who may request one and of what, what a worker's result must be, and the
page with scores, the comparison with another model, and the answers."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.services import base_model_register
from cohort.lab import services
from cohort.lab.evaluations import comparable, measured, results_of
from cohort.lab.jobs import BadResult, job_config, job_finish
from cohort.lab.models import JobState, LabJob, ModelEvalItem, ModelEvalResult
from cohort.lab.services import evaluation_request
from grpo_core.errors import ConfigError
from grpo_core.lab.job import Job
from grpo_core.protocol.messages import JobFinish
from grpo_core.stats.paired import paired
from grpo_core.stats.quantiles import wilson
from tests.factories.lab import claimed, evaluated
from tests.factories.runs import HOSTILE_SHOWN
from tests.factories.suites import CHOICES, HARMFUL, add_suite
from tests.web.pages import html
from tests.web.test_lab_pages import text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def suite(ours: Project, alice: User) -> EvalSuiteVersion:
    """Three capitals."""
    return add_suite(ours, alice)


@pytest.fixture
def other(base_model: BaseModel, alice: User) -> BaseModel:
    return base_model_register(project=base_model.project, actor=alice, name="other", path=base_model.path)


def address(job: LabJob, query: str = "") -> str:
    return f"/p/ours/lab/jobs/{job.pk}/{query}"


# ---------------------------------------------------------------------- requesting


def test_the_form_requests_what_the_worker_is_given(
    operator: Client,
    oscar: User,
    base_model: BaseModel,
    suite: EvalSuiteVersion,
    dataset: PromptDataset,
    verifier_version: VerifierVersion,
) -> None:
    page = html(operator.get(f"/p/ours/models/{base_model.pk}/"))
    assert f'href="/p/ours/models/{base_model.pk}/evaluate/"' in page
    form = html(operator.get(f"/p/ours/models/{base_model.pk}/evaluate/"))
    assert f'name="suites" value="{suite.pk}"' in form
    sent: dict[str, Any] = {"suites": [suite.pk], "dataset": dataset.pk, "version": verifier_version.pk, "limit": "2"}
    sent |= {
        "samples": "3",
        "temperature": "0.5",
        "max_completion_tokens": "32",
        "seed": "7",
        "template": "Q: {prompt}",
    }
    answer: Any = operator.post(f"/p/ours/models/{base_model.pk}/evaluate/", sent)
    job = LabJob.objects.get()
    assert answer.url == address(job)
    assert (job.kind, job.created_by, job.base_model, job.dataset) == ("evaluate", oscar, base_model, dataset)
    given = Job.model_validate(job_config(job))
    assert given.model is not None
    assert (given.model.path, [each.name for each in given.suites]) == (base_model.path, ["capitals"])
    assert given.suites[0].sha256 == suite.sha256
    options: Any = given.chosen()
    assert (options.samples, options.temperature, options.limit, options.seed) == (3, 0.5, 2, 7)
    assert {file["sha256"] for file in job.inputs} == {suite.sha256, dataset.sha256}
    entry = AuditEntry.objects.get(kind="lab_job_asked")
    assert (entry.actor, entry.subject) == ("user:oscar", f"lab_job:{job.pk}")
    waiting = text_of(html(operator.get(address(job))))
    assert "Evaluation of a base model" in waiting


def test_nothing_chosen_is_said_also_where_the_project_has_no_suite(operator: Client, base_model: BaseModel) -> None:
    sent = {"samples": "1", "temperature": "0", "seed": "1", "max_completion_tokens": "16"}
    answer = operator.post(f"/p/ours/models/{base_model.pk}/evaluate/", sent)
    assert (answer.status_code, "choose a suite, or a dataset" in html(answer)) == (422, True)


def test_faults_name_fields_and_nothing_is_requested(
    operator: Client,
    alice: User,
    charlie: User,
    base_model: BaseModel,
    suite: EvalSuiteVersion,
    dataset: PromptDataset,
    verifier_version: VerifierVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faults(**more: Any) -> list[str]:
        with pytest.raises(ConfigError) as error:
            evaluation_request(base_model=base_model, actor=alice, **more)
        return [problem.path for problem in error.value.problems]

    assert faults() == ["suites"]
    assert faults(dataset=dataset) == ["version"]
    assert faults(versions=[suite], verifier_version=verifier_version) == ["dataset"]
    newer = add_suite(base_model.project, alice, content=b'{"id": "a", "prompt": "b", "target": "c"}\n')
    assert faults(versions=[suite, newer]) == ["suites"]
    theirs = add_suite(charlie.memberships.get().project, charlie)
    assert faults(versions=[theirs]) == ["suites"]
    assert faults(versions=[suite], options={"temperature": 0.001}) == ["options.temperature"]
    monkeypatch.setattr(services, "MAX_ITEMS", 2)
    assert faults(versions=[suite]) == ["options.limit"]
    monkeypatch.setattr(services, "MAX_ITEMS", 0)
    sent = {"suites": [newer.pk], "samples": "0", "temperature": "0", "max_completion_tokens": "32", "seed": "0"}
    answer = operator.post(f"/p/ours/models/{base_model.pk}/evaluate/", sent)
    assert answer.status_code == 422
    assert 'id="id_samples_error"' in html(answer)
    answer = operator.post(f"/p/ours/models/{base_model.pk}/evaluate/", sent | {"samples": "1"})
    assert (answer.status_code, 'id="id_limit_error"' in html(answer)) == (422, True)
    assert f'value="{newer.pk}" id="id_suites_0" checked' in html(answer), "what was chosen is kept"
    assert not LabJob.objects.exists()


# ---------------------------------------------------------------------- a worker's result


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda result: result.update(model="another"), "of the model another"),
        (lambda result: result["results"][0]["protocol"].update(file_sha256="0" * 64), "other suites or files"),
        (lambda result: result["results"][0].update(correct=3), "totals of capitals"),
        (lambda result: result["items"].pop(), "totals of capitals"),
        (lambda result: result["items"][0].update(score=1.5), "less than or equal to 1"),
    ],
)
def test_a_result_that_is_none_is_refused(
    base_model: BaseModel, alice: User, suite: EvalSuiteVersion, spoil: Callable[[Any], Any], word: str
) -> None:
    done = evaluated(base_model, alice, suite, [1.0, 0.0, 0.0])
    row, items = results_of(done)[0], list(ModelEvalItem.objects.order_by("index").values())
    result = {**done.result, "items": [_as_sent(row, item) for item in items]}  # type: ignore[dict-item]
    again = evaluation_request(base_model=base_model, actor=alice, versions=[suite])
    taken = claimed(again)
    spoil(result)
    with pytest.raises(BadResult, match=word):
        job_finish(job=taken, finish=JobFinish(fence=taken.fence, end="done", result=result))
    again.refresh_from_db()
    assert (again.state, again.evaluations.count()) == (JobState.RUNNING, 0)


def _as_sent(row: ModelEvalResult, item: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in item.items() if name not in ("id", "result_id", "index", "error")}
    return {"kind": "eval_item", "phase": "before", "suite": row.suite, **own}


def test_what_was_measured_is_only_added_to(base_model: BaseModel, alice: User, suite: EvalSuiteVersion) -> None:
    evaluated(base_model, alice, suite, [1.0, 0.0, 0.0])
    for rows, change in (
        (ModelEvalResult.objects.all(), {"correct": 3.0}),
        (ModelEvalItem.objects.all(), {"score": 1.0}),
    ):
        with pytest.raises(DatabaseError, match="only added to"), transaction.atomic():
            rows.update(**change)
        with pytest.raises(DatabaseError, match="only added to"), transaction.atomic():
            rows._raw_delete(using="default")


# ---------------------------------------------------------------------- the page


def test_scores_have_intervals_and_are_compared_item_by_item(
    operator: Client, alice: User, base_model: BaseModel, other: BaseModel, suite: EvalSuiteVersion
) -> None:
    """Figures by the statistics of `grpo_core.stats`: 2 right and 1 without a score against 1 of 3."""
    earlier = evaluated(other, alice, suite, [1.0, 0.0, 0.0], completion="theirs")
    job = evaluated(base_model, alice, suite, [1.0, 1.0, None], completion="ours")
    (result,) = results_of(job)
    (against,) = comparable(job, [result])
    assert (against.job, against.model) == (earlier, other)
    compared = measured(result, against.results["capitals"])
    assert compared.own["interval"] == {"low": wilson(2, 3).low, "high": wilson(3, 3).high}
    assert (compared.own["share"], compared.own["bounds"]) == (1.0, {"low": pytest.approx(2 / 3), "high": 1.0})
    assert compared.compared["change"]["interval"] == {"low": paired(1, 0, 2).low, "high": paired(2, 0, 3).high}
    assert compared.points is not None
    assert compared.points.difference == "+50.0"
    alone = text_of(html(operator.get(address(job))))
    assert "100.0 % [20.8 %, 100.0 %] of 2 scored; 1 unscored: 66.7 % to 100.0 % if all were wrong or right" in alone
    entry = AuditEntry.objects.filter(kind="model_evaluated").order_by("-pk")[0]
    assert (entry.actor, entry.subject) == ("node:lab-node", "base_model:tiny")
    assert "difference" not in alone.split("Brackets")[0]
    page = html(operator.get(address(job, f"?against={earlier.pk}")))
    assert "+50.0 points" in text_of(page)
    assert "ours 0" in page
    assert "theirs 0" in page
    assert HOSTILE_SHOWN in page, "why the third could not be scored"


def test_items_are_filtered_and_another_protocol_is_not_compared(
    operator: Client, alice: User, base_model: BaseModel, other: BaseModel, suite: EvalSuiteVersion
) -> None:
    warm = evaluated(other, alice, suite, [1.0, 0.0, 0.0], temperature=1.0)
    job = evaluated(base_model, alice, suite, [1.0, 0.0, None])
    for show, ids in {
        "all": ["ours 0", "ours 1", "ours 2"],
        "right": ["ours 0"],
        "wrong": ["ours 1"],
        "truncated": ["ours 1"],
        "errors": ["ours 2"],
        "whatever": ["ours 0", "ours 1", "ours 2"],
    }.items():
        page = html(operator.get(address(job, f"?show={show}&items=1"))).replace("as it may", "ours")
        assert [answer for answer in ("ours 0", "ours 1", "ours 2") if answer in page] == ids, show
    page = html(operator.get(address(job, f"?against={warm.pk}")))
    assert "not comparable: another temperature" in text_of(page)
    assert "points" not in text_of(page)


def test_texts_of_a_sensitive_suite_are_for_reviewers_behind_a_click(
    viewer: Client, reviewer: Client, alice: User, base_model: BaseModel, ours: Project
) -> None:
    version = add_suite(ours, alice, "locks", spec=HARMFUL, content=CHOICES)
    job = evaluated(base_model, alice, version, [1.0, 0.0, 1.0, 0.0], completion="HOW TO")
    for client, query in ((viewer, ""), (viewer, "?texts=1"), (reviewer, "")):
        page = html(client.get(address(job, query)))
        assert "HOW TO" not in page
        assert "SECRET question" not in page
    shown = html(reviewer.get(address(job, "?texts=1")))
    assert "HOW TO 0" in shown
    assert "SECRET question" in shown
    content = b"".join(viewer.get(address(job, "result.json")).streaming_content)  # type: ignore[attr-defined]
    assert b"HOW TO" not in content
    assert b"file_sha256" in content
    assert "even" in text_of(shown), "each slice has its own score"


def test_a_model_s_page_lists_its_evaluations_in_as_many_queries_as_one_needs(
    operator: Client,
    alice: User,
    base_model: BaseModel,
    suite: EvalSuiteVersion,
    django_assert_max_num_queries: Any,
) -> None:
    evaluated(base_model, alice, suite, [1.0, 0.0, 0.0])
    page = f"/p/ours/models/{base_model.pk}/"
    with django_assert_max_num_queries(25) as first:
        operator.get(page)
    for _ in range(2):
        job = evaluated(base_model, alice, suite, [1.0, 1.0, 1.0])
    with django_assert_max_num_queries(len(first)):
        shown = html(operator.get(page))
    assert f'href="/p/ours/lab/jobs/{job.pk}/?suite=capitals"' in shown
    assert text_of(shown).count("100.0 %") == 2
