"""A judged sample, or a judged answer of a chat, becomes a probe case, a suite's item, or part of preference pairs."""

import json
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import User
from cohort.base import artifacts
from cohort.catalog.models import EvalSuiteVersion, ProbeCase, PromptDataset
from cohort.catalog.probe_cases import judged_texts
from cohort.catalog.services import dataset_create
from cohort.lab.models import ChatAnswer, JobKind
from cohort.lab.services import job_request
from cohort.review.models import Group, Sample
from cohort.review.preferences import preference_pairs, preferences_dataset_create
from cohort.review.services import answer_judge, sample_judge
from cohort.review.uses import problem_of, sample_to_probe_case, sample_to_suite
from cohort.runs.models import Run
from grpo_core.lab.job import MAX_TEXTS
from tests.factories.lab import talked
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_group
from tests.factories.suites import add_suite
from tests.web.pages import html
from tests.web.records.records import logged

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training")


@pytest.fixture
def group(maker: Maker, run: Run) -> Group:
    return add_group(maker.attempt(run), [1.0, 1.0, 0.0, 0.0], step=3)


def sample_of(group: Group, index: int) -> Sample:
    return group.samples.select_related("group__run__project", "group__run__dataset").get(index=index)


def address(sample: Sample) -> str:
    return f"/p/ours/runs/{sample.group.run_id}/groups/{sample.group_id}/samples/{sample.index}/use/"


# ---------------------------------------------------------------------- a probe case


def test_a_judged_sample_is_given_to_the_next_probe_of_its_reward(
    reviewer: Client, rita: User, group: Group, maker: Maker
) -> None:
    sample = sample_of(group, 1)
    sample_judge(sample=sample, actor=rita, verdict="wrong")
    verifier = maker.verifier_version.verifier
    page = html(reviewer.get(address(sample)))
    assert f'<option value="{verifier.pk}" selected>' in page, "the run's own reward is chosen"
    assert "does not pass this completion" in page
    assert reviewer.post(address(sample), {"action": "case", "verifier": verifier.pk}).status_code == 302
    case = ProbeCase.objects.get()
    assert case.source == {"run": group.run_id, "group": group.pk, "step": 3, "sample": 2}
    job = job_request(project=maker.project, actor=rita, kind="probe", version=maker.verifier_version)
    assert job.kind == JobKind.PROBE
    (text,) = job.options["judged"]
    assert (text["prompt"], text["answer"], text["completion"], text["right"]) == (
        group.prompt,
        group.answer,
        sample.completion,
        False,
    )
    body = logged("probe_case_added")[0]
    assert (body["actor"], body["after"]["right"]) == ("user:rita", False)
    assert sample.completion not in json.dumps(body), "a text may have to be deleted; the log cannot"
    page = html(reviewer.get(f"/p/ours/rewards/{verifier.pk}/"))
    assert "must not pass" in page
    assert f"/groups/{group.pk}/?sample=2" in page


def test_the_problem_is_the_datasets_with_all_its_fields(maker: Maker, run: Run) -> None:
    lines = artifacts.open_read(run.dataset.artifact).read().splitlines()
    row = json.loads(lines[2])
    group = add_group(maker.attempt(run), [1.0], prompt=row["prompt"], answer=row["answer"])
    Group.objects.filter(pk=group.pk).update(problem_id=row.get("id", "line-3"))
    problem = problem_of(Group.objects.get(pk=group.pk))
    assert (problem.prompt, problem.answer) == (row["prompt"], row["answer"])
    assert set(row) - {"id", "prompt", "answer"} == set(problem.meta)


def test_what_cannot_be_a_case_is_refused(rita: User, alice: User, group: Group, maker: Maker) -> None:
    verifier, sample = maker.verifier_version.verifier, sample_of(group, 0)

    def refused(words: str) -> None:
        with pytest.raises(ValidationError, match=words):
            sample_to_probe_case(sample=sample, verifier=verifier, actor=rita)

    refused("Judge this sample right or wrong first")
    sample_judge(sample=sample, actor=rita, verdict="right")
    sample_judge(sample=sample, actor=alice, verdict="wrong")
    refused("Judge this sample right or wrong first")
    sample_judge(sample=sample, actor=alice, verdict="right")
    sample_to_probe_case(sample=sample, verifier=verifier, actor=rita)
    refused("already")
    case = ProbeCase.objects.get()
    ProbeCase.objects.bulk_create(
        ProbeCase(verifier=verifier, answer=case.answer, digest=str(n), source=case.source, created_by=rita)
        for n in range(MAX_TEXTS - 1)
    )
    other = sample_of(add_group(group.attempt, [0.0], index=1, completion="another"), 0)
    sample_judge(sample=other, actor=rita, verdict="wrong")
    with pytest.raises(ValidationError, match="Remove another one first"):
        sample_to_probe_case(sample=other, verifier=verifier, actor=rita)
    assert len(judged_texts(verifier)) == MAX_TEXTS


def test_a_case_is_removed_and_the_log_keeps_that(reviewer: Client, rita: User, group: Group, maker: Maker) -> None:
    sample, verifier = sample_of(group, 0), maker.verifier_version.verifier
    sample_judge(sample=sample, actor=rita, verdict="wrong")
    case = sample_to_probe_case(sample=sample, verifier=verifier, actor=rita)
    assert reviewer.post(f"/p/ours/rewards/{verifier.pk}/probe-cases/{case.pk}/remove/").status_code == 302
    assert not ProbeCase.objects.exists()
    assert logged("probe_case_removed")[0]["before"]["digest"] == case.digest


def test_a_judged_answer_of_a_chat_is_a_case_too(
    reviewer: Client, rita: User, alice: User, maker: Maker, models_folder: Path
) -> None:
    answer = _answered(alice, maker)
    answer_judge(answer=answer, actor=rita, verdict="right")
    chat = answer.message.conversation_id
    verifier = maker.verifier_version.verifier
    place = f"/p/ours/lab/chat/{chat}/answers/{answer.pk}/probe-case/"
    assert "Keep as a probe case" in html(reviewer.get(place))
    assert reviewer.post(place, {"verifier": verifier.pk, "target": "127"}).status_code == 302
    case = ProbeCase.objects.get()
    assert (case.answer["right"], case.answer["answer"], case.answer["completion"]) == (True, "127", answer.text)
    assert case.source == {"chat": chat, "message": 1}


def _answered(alice: User, maker: Maker) -> ChatAnswer:
    conversation = talked(alice, "what is 49 + 78?", {"model": "127"}, base_model=maker.base_model)
    return ChatAnswer.objects.select_related("message__conversation__project").get(
        message__conversation=conversation, side="model"
    )


# ---------------------------------------------------------------------- an item of a suite


@pytest.fixture
def suite(maker: Maker, alice: User) -> EvalSuiteVersion:
    return add_suite(maker.project, alice)


def test_a_sample_becomes_a_suites_item_for_a_reason(
    admin: Client, alice: User, group: Group, suite: EvalSuiteVersion
) -> None:
    sample = sample_of(group, 0)
    given = {"action": "suite", "suite": suite.pk, "target": group.answer, "reason": ""}
    page = admin.get(address(sample))
    assert "In a held-out suite it leaks" in html(page)
    assert admin.post(address(sample), given).status_code == 422
    assert admin.post(address(sample), {**given, "reason": "it is our canary"}).status_code == 302
    newest = EvalSuiteVersion.objects.get(suite=suite.suite, number=suite.number + 1)
    assert newest.items == suite.items + 1
    item = json.loads(artifacts.open_read(newest.artifact).read().splitlines()[-1])
    assert (item["prompt"], item["target"]) == (group.prompt, group.answer)
    assert item["source"] == f"run {group.run_id}, step 3, problem {group.problem_id}"
    assert [body["reason"] for body in logged("suite_version_added")][-1] == "it is our canary"
    with pytest.raises(ValidationError, match="has this prompt already"):
        sample_to_suite(sample=sample, version=newest, target="127", reason="again", actor=alice)


def test_a_reviewer_adds_no_item(reviewer: Client, group: Group, suite: EvalSuiteVersion) -> None:
    sample = sample_of(group, 0)
    given = {"action": "suite", "suite": suite.pk, "target": "127", "reason": "why not"}
    assert reviewer.post(address(sample), given).status_code == 403


# ---------------------------------------------------------------------- preference pairs


def test_pairs_are_every_right_one_with_every_wrong_one_of_a_group(
    reviewer: Client, rita: User, group: Group, maker: Maker
) -> None:
    for index, verdict in enumerate(("right", "wrong", "wrong", "unsure")):
        Sample.objects.filter(group=group, index=index).update(completion=f"completion {index}")
        sample_judge(sample=group.samples.get(index=index), actor=rita, verdict=verdict)
    alone = add_group(group.attempt, [1.0], index=1)
    sample_judge(sample=alone.samples.get(), actor=rita, verdict="wrong")
    response = reviewer.get(f"/p/ours/runs/{group.run_id}/review/preferences.jsonl")
    rows = [json.loads(line) for line in b"".join(response.streaming_content).splitlines()]  # type: ignore[attr-defined]
    assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [
        (group.prompt, "completion 0", "completion 1"),
        (group.prompt, "completion 0", "completion 2"),
    ]
    assert logged("preferences_downloaded")[0]["actor"] == "user:rita"
    assert "in 2 pairs" in " ".join(html(reviewer.get(address(sample_of(group, 0)))).split())


def test_pairs_of_a_conversation_are_messages(rita: User, group: Group, run: Run, maker: Maker, alice: User) -> None:
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": group.prompt}]
    content = json.dumps({"id": group.problem_id, "messages": turns, "answer": "127"}).encode()
    dataset = dataset_create(project=maker.project, actor=alice, name="talk", format="messages", chunks=[content])
    Run.objects.filter(pk=run.pk).update(dataset=dataset)
    for index, verdict in enumerate(("right", "wrong")):
        sample_judge(sample=group.samples.get(index=index), actor=rita, verdict=verdict)
    (pair,) = preference_pairs(Run.objects.get(pk=run.pk))
    assert pair["prompt"] == turns
    assert pair["chosen"] == [{"role": "assistant", "content": group.samples.get(index=0).completion}]


def test_hostile_text_is_inert_on_the_page(reviewer: Client, rita: User, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0], prompt=HOSTILE, answer=HOSTILE, completion=HOSTILE)
    sample = sample_of(group, 0)
    sample_judge(sample=sample, actor=rita, verdict="wrong")
    sample_to_probe_case(sample=sample, verifier=maker.verifier_version.verifier, actor=rita)
    for place in (address(sample), f"/p/ours/rewards/{maker.verifier_version.verifier_id}/"):
        page = html(reviewer.get(place))
        assert HOSTILE_SHOWN in page
        assert "<script>alert" not in page


def judged_pairs(rita: User, group: Group, *verdicts: str) -> None:
    for index, verdict in enumerate(verdicts):
        Sample.objects.filter(group=group, index=index).update(completion=f"completion {index}")
        sample_judge(sample=group.samples.get(index=index), actor=rita, verdict=verdict)


def test_a_dataset_of_judgements_has_each_pair_once(operator: Client, rita: User, group: Group, run: Run) -> None:
    judged_pairs(rita, group, "right", "wrong", "wrong", "right")
    Sample.objects.filter(group=group, index=3).update(completion="completion  2")  # as one that is wrong
    url = f"/p/ours/runs/{run.pk}/review/dataset/"
    for _ in range(2):  # a form sent twice makes one dataset
        response = operator.post(url)
        dataset = PromptDataset.objects.get(made__judgements=run.pk)
        assert response["Location"] == f"/p/ours/datasets/{dataset.pk}/"
    rows = [json.loads(line) for line in b"".join(artifacts.read_chunks(dataset.artifact)).splitlines()]
    assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [
        (group.prompt, "completion 0", "completion 1"),
        (group.prompt, "completion 0", "completion 2"),
        (group.prompt, "completion  2", "completion 1"),
    ]
    assert (dataset.content, dataset.format, dataset.problems) == ("preferences", "pairs", 3)
    assert dataset.made == {"judgements": run.pk, "pairs": 3, "groups": 1, "equal": 1}
    (entry,) = logged("dataset_judged")
    assert (entry["actor"], entry["subject"]) == ("user:oscar", f"dataset:{dataset.pk}")
    page = " ".join(html(operator.get(response["Location"])).split())
    assert f'<a href="/p/ours/runs/{run.pk}/review/">run {run.pk}</a>' in page
    assert "1 of equal texts left out" in page
    sample_judge(sample=group.samples.get(index=1), actor=rita, verdict="right")
    operator.post(url)
    assert PromptDataset.objects.filter(made__judgements=run.pk).count() == 2, "other judgements, another dataset"


def test_without_a_pair_there_is_no_dataset(operator: Client, rita: User, group: Group, run: Run) -> None:
    judged_pairs(rita, group, "wrong", "wrong")
    response = operator.post(f"/p/ours/runs/{run.pk}/review/dataset/", follow=True)
    assert "so there is no pair" in html(response)
    assert not PromptDataset.objects.filter(content="preferences").exists()


def test_a_dataset_of_judgements_begins_its_answers_as_the_run_did(
    alice: User, rita: User, group: Group, run: Run
) -> None:
    run.config["data"]["prefill"] = "<think>"
    Run.objects.filter(pk=run.pk).update(config=run.config)
    judged_pairs(rita, group, "right", "wrong")
    dataset = preferences_dataset_create(run=Run.objects.get(pk=run.pk), actor=alice)
    row = json.loads(b"".join(artifacts.read_chunks(dataset.artifact)))
    assert (row["chosen"], row["rejected"]) == ("<think>completion 0", "<think>completion 1")
