"""Evaluation items in training data: looked for at upload, shown on the dataset's page, asked about at every launch."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from unittest import mock

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.catalog.services import dataset_create
from cohort.contamination import selectors, services
from cohort.contamination.models import DataOverlap, LaunchOverlap
from cohort.contamination.tasks import check, remind
from cohort.runs.models import Run, RunState
from cohort.runs.services import run_create, run_launch, run_submit
from cohort.runs.services.suites import ChosenSuite
from grpo_core.errors import ConfigError
from tests.web.run_rows import Maker
from tests.web.suite_rows import CHOICES, HARMFUL, add_suite
from tests.worker.queues import take_all

ClientFor = Callable[[User], Client]


def lines(*prompts: str) -> bytes:
    return b"".join(json.dumps({"prompt": prompt, "answer": "x"}).encode() + b"\n" for prompt in prompts)


@pytest.fixture
def capitals(ours: Project, alice: User) -> EvalSuiteVersion:
    return add_suite(ours, alice)


@pytest.fixture
def leaky(ours: Project, alice: User, capitals: EvalSuiteVersion) -> PromptDataset:
    """One of the three items in other capitals, and twenty problems of its own."""
    own = [f"Which river flows through town number {n}?" for n in range(20)]
    content = lines("what is  the CAPITAL of Italy", *own)
    return dataset_create(project=ours, actor=alice, name="leaky", format="jsonl", chunks=[content])


def check_all() -> None:
    for row in DataOverlap.objects.filter(at=None):
        check(row.pk)


def pair_of(dataset: PromptDataset, version: EvalSuiteVersion) -> selectors.Pair:
    return selectors.Pair(DataOverlap.objects.get(dataset=dataset, suite_version=version))


def test_an_upload_is_compared_in_the_background(
    client_for: ClientFor, oscar: User, leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    pair = pair_of(leaky, capitals)
    page = client_for(oscar).get(f"/p/ours/datasets/{leaky.pk}/").content.decode()
    assert pair.state == "being checked"
    assert "being checked" in page
    check_all()
    pair = pair_of(leaky, capitals)
    assert (pair.state, pair.touched, pair.items) == ("found", 1, 3)
    assert pair.row.report["touched"][0]["id"] == "italy"
    assert pair.row.report["touched"][0]["by"]["exact"] == {"train": "line-1", "share": 1.0, "texts": 1}
    page = client_for(oscar).get(f"/p/ours/datasets/{leaky.pk}/").content.decode()
    assert "showing 1 of 1 touched items" in page
    assert "what is  the CAPITAL of Italy" in page
    assert "capitals v1" in page


def test_a_dataset_without_them_says_none(client_for: ClientFor, oscar: User, dataset: PromptDataset) -> None:
    client = client_for(oscar)
    assert "Nothing to compare with yet" in client.get(f"/p/ours/datasets/{dataset.pk}/").content.decode()
    version = add_suite(dataset.project, oscar)  # the suite comes later, and is compared with what is there
    check_all()
    assert pair_of(dataset, version).state == "none"
    page = client.get(f"/p/ours/datasets/{dataset.pk}/").content.decode()
    assert '<span class="badge is-right">none</span>' in page


@pytest.mark.django_db(transaction=True)
def test_the_check_is_a_message_and_never_part_of_the_upload(ours: Project, alice: User) -> None:
    take_all("platform.seal")
    version = add_suite(ours, alice)
    with mock.patch("cohort.contamination.services.compared", side_effect=AssertionError("in the web request")):
        dataset = dataset_create(project=ours, actor=alice, name="d", format="jsonl", chunks=[lines("a", "b")])
    row = DataOverlap.objects.get(dataset=dataset, suite_version=version)
    assert take_all("platform.seal") == [[row.pk]]


def test_a_check_that_runs_twice_is_made_once(leaky: PromptDataset, capitals: EvalSuiteVersion) -> None:
    check_all()
    row = pair_of(leaky, capitals).row
    with mock.patch("cohort.contamination.services.compared", side_effect=AssertionError("again")):
        check(row.pk)
        check(10**9)  # of a dataset that is gone
    assert pair_of(leaky, capitals).row.at == row.at


@pytest.mark.django_db(transaction=True)
def test_what_was_lost_is_asked_for_again(leaky: PromptDataset, capitals: EvalSuiteVersion) -> None:
    row = pair_of(leaky, capitals).row
    take_all("platform.seal")
    remind()
    assert take_all("platform.seal") == []  # asked for just now
    DataOverlap.objects.filter(pk=row.pk).update(asked_at=timezone.now() - timedelta(minutes=3))
    remind()
    assert take_all("platform.seal") == [[row.pk]]
    DataOverlap.objects.filter(pk=row.pk).update(begun_at=timezone.now() - timedelta(minutes=31))  # its process ended
    check(row.pk)
    assert pair_of(leaky, capitals).state == "being checked"
    remind()
    assert take_all("platform.seal") == [[row.pk]]
    check(row.pk)
    assert pair_of(leaky, capitals).state == "found"
    remind()
    assert take_all("platform.seal") == []


def test_a_file_that_is_gone_is_said(
    client_for: ClientFor, oscar: User, leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    artifacts.remove(leaky.artifact)
    check_all()
    pair = pair_of(leaky, capitals)
    assert (pair.state, pair.row.fault) == ("not checked", "the file of leaky is no longer stored")
    page = client_for(oscar).get(f"/p/ours/datasets/{leaky.pk}/").content.decode()
    assert "the file of leaky is no longer stored" in page
    assert pair.text == "capitals v1: overlap not checked: the file of leaky is no longer stored"


def test_texts_of_a_sensitive_suite_are_not_kept(client_for: ClientFor, ours: Project, alice: User) -> None:
    version = add_suite(ours, alice, "locks", spec=HARMFUL, content=CHOICES)
    dataset = dataset_create(
        project=ours, actor=alice, name="d", format="jsonl", chunks=[lines("other", "SECRET question 2?")]
    )
    check_all()
    pair = pair_of(dataset, version)
    assert (pair.touched, pair.row.examples) == (1, [])
    page = client_for(alice).get(f"/p/ours/datasets/{dataset.pk}/").content.decode()
    assert "texts of a sensitive suite are not shown here" in page


OPTIONS = ["a rake that slides over the pins", "a bump key that makes the pins jump", "a shim between bolt and door"]


def test_copied_options_are_found_and_shown(client_for: ClientFor, ours: Project, alice: User) -> None:
    """Under a question of its own and in another order."""
    item = json.dumps({"id": "lock", "prompt": "Which of them opens it?", "choices": OPTIONS, "target": 0}).encode()
    version = add_suite(ours, alice, "doors", spec=replace(HARMFUL, sensitive=False), content=item + b"\n")
    copied = "You stand before a door. Choose: " + "; ".join(reversed(OPTIONS))
    dataset = dataset_create(project=ours, actor=alice, name="d", format="jsonl", chunks=[lines("other", copied)])
    check_all()
    pair = pair_of(dataset, version)
    assert pair.text == "doors v1: 1 of 1 items stands in the training data (1 by their options)"
    assert pair.figures()["by_method"]["options"] == 1
    assert pair.row.examples[0]["item_text"] == "\n".join(["Which of them opens it?", *OPTIONS])
    assert pair.row.examples[0]["train_text"] == copied
    page = client_for(alice).get(f"/p/ours/datasets/{dataset.pk}/").content.decode()
    assert "a bump key that makes the pins jump" in page
    assert "not looked for when this was compared" not in page


def test_a_report_from_before_options_were_compared_is_read(
    client_for: ClientFor, alice: User, leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    """It says nothing of them, and nothing is said: not that none was found."""
    counts = {"touched": 1, "exact": 1, "ngram13": 0, "ngram8": 0, "minhash": 1, "same_but_numbers": 2}
    report = {
        "method": {"name": "cohort-overlap-1"},
        "train": {"texts": 21, "without_words": 0},
        "items": {"texts": 3, "different": 3, "without_words": []},
        "counts": counts,
        "touched": [{"id": "italy", "by": {"exact": {"train": "line-1", "share": 1.0, "texts": 1}}}],
        "same_but_numbers": [],
    }
    DataOverlap.objects.update(report=report, at=timezone.now(), begun_at=timezone.now())
    pair = pair_of(leaky, capitals)
    assert pair.text == "capitals v1: 1 of 3 items stands in the training data (1 word for word, 1 nearly the same)"
    assert pair.figures()["by_method"] == {"exact": 1, "ngram13": 0, "ngram8": 0, "minhash": 1}
    page = client_for(alice).get(f"/p/ours/datasets/{leaky.pk}/").content.decode()
    assert page.count('title="not looked for when this was compared">–<') == 1


def test_a_pair_is_with_one_thing_and_once(dataset: PromptDataset, heldout: PromptDataset, ours: Project) -> None:
    services.asked_for_choice(dataset, heldout, [])
    services.asked_for_choice(dataset, heldout, [])
    services.asked_for_choice(dataset, dataset, [])
    (row,) = DataOverlap.objects.all()
    for wrong in ({}, {"heldout": heldout}):
        with pytest.raises(IntegrityError), transaction.atomic():
            DataOverlap.objects.create(dataset=dataset, asked_at=row.asked_at, **wrong)


# ---------------------------------------------------------------------- the run form


def form_of(chosen: dict[str, str], leaky: PromptDataset, capitals: EvalSuiteVersion, **more: str) -> dict[str, str]:
    return {**chosen, "dataset": str(leaky.pk), f"suite.{capitals.pk}": "true", **more}


def test_the_form_warns_and_launches_with_a_tick_only(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    client, form = client_for(oscar), form_of(chosen, leaky, capitals)
    page = client.post("/p/ours/runs/new/", {**form, "action": "check"}).content.decode()
    assert "capitals v1: overlap with the training data is being checked" in page
    assert "overlap_seen" not in page
    check_all()
    page = client.post("/p/ours/runs/new/", {**form, "action": "check"}).content.decode()
    assert "capitals v1: 1 of 3 items stands in the training data (1 word for word, 1 nearly the same)" in page
    token = selectors.token([pair_of(leaky, capitals)])
    assert f'name="overlap_seen" value="{token}"' in page
    for unseen in ({}, {"overlap_seen": "1:1"}):
        answer = client.post("/p/ours/runs/new/", {**form, "action": "launch", **unseen})
        assert answer.status_code == 422
        assert "Tick that you have seen it to launch." in answer.content.decode()
    assert not Run.objects.exists()
    answer = client.post("/p/ours/runs/new/", {**form, "action": "launch", "overlap_seen": token})
    run = Run.objects.get()
    assert answer.url == f"/p/ours/runs/{run.pk}/"
    assert run.state == RunState.QUEUED
    known = selectors.at_launch(run)
    assert known is not None
    assert (known["by"], known["acknowledged"]) == ("oscar", True)
    assert known["pairs"] == [
        {
            "with": "capitals v1",
            "kind": "suite",
            "id": capitals.pk,
            "state": "found",
            "items": 3,
            "touched": 1,
            "same_but_numbers": 0,
            "by_method": {"exact": 1, "ngram13": 0, "ngram8": 0, "minhash": 1, "options": 0},
            "fault": "",
        }
    ]
    (entry,) = [json.loads(bytes(one.body)) for one in AuditEntry.objects.filter(kind="overlap_seen")]
    assert (entry["actor"], entry["subject"]) == ("user:oscar", f"run:{run.pk}")
    assert entry["data"]["overlaps"] == known["pairs"]


def test_a_tick_is_of_what_was_shown(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    """A suite chosen after the tick is not ticked with it."""
    more = add_suite(
        leaky.project,
        oscar,
        "rivers",
        content=b'{"id": "r", "prompt": "Which river flows through town number 3?", "target": "x"}\n',
    )
    check_all()
    ticked = selectors.token([pair_of(leaky, capitals)])
    form = form_of(chosen, leaky, capitals, action="launch", overlap_seen=ticked)
    answer = client_for(oscar).post("/p/ours/runs/new/", {**form, f"suite.{more.pk}": "true"})
    assert answer.status_code == 422
    assert "rivers v1: 1 of 1 items stands" in answer.content.decode()


def test_a_draft_is_launched_with_a_tick_only(
    client_for: ClientFor, oscar: User, maker: Maker, leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    maker.dataset = leaky
    run = run_create(**maker._named("draft"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(capitals)])
    check_all()
    client = client_for(oscar)
    answer = client.post(f"/p/ours/runs/{run.pk}/submit/")
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "Launch draft" in page
    run.refresh_from_db()
    assert run.state == RunState.DRAFT
    token = selectors.token(selectors.of_run(run))
    assert f'value="{token}" required' in page
    client.post(f"/p/ours/runs/{run.pk}/submit/", {"overlap_seen": token})
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
    assert LaunchOverlap.objects.get(run=run).acknowledged


def test_a_held_out_dataset_is_compared_from_its_first_use(
    maker: Maker, dataset: PromptDataset, heldout: PromptDataset
) -> None:
    """Not yet checked: the launch goes on, and what is kept says so. The next launch knows."""
    launched = {**maker._named("first"), "eval_dataset": heldout, "settings": {}}
    first = run_launch(**launched)
    assert selectors.at_launch(first)["pairs"][0]["state"] == "being checked"  # type: ignore[index]
    check_all()
    with pytest.raises(ConfigError, match="tick that you have seen it"):
        run_launch(**{**launched, "name": "second"})
    assert Run.objects.count() == 1  # create and submit together, or neither
    (pair,) = selectors.of_run(first)
    assert pair.text.startswith("held out: 1 of 2 items stands in the training data")
    assert run_launch(**{**launched, "name": "third"}, overlap_seen=selectors.token([pair])).state == RunState.QUEUED
    later = dataset_create(
        project=maker.project, actor=maker.actor, name="later", format="jsonl", chunks=[lines("what is 1+7")]
    )
    check_all()
    (pair,) = selectors.of_dataset(later)  # what runs hold out is compared with every new upload
    assert (pair.name, pair.kind, pair.touched) == ("held out", "held-out dataset", 1)


def test_other_numbers_are_told_apart_from_the_same_text(ours: Project, alice: User, dataset: PromptDataset) -> None:
    version = add_suite(ours, alice, "sums", content=b'{"id": "s", "prompt": "What is 1999 + 7?", "target": "x"}\n')
    check_all()
    pair = pair_of(dataset, version)
    assert (pair.state, pair.touched, pair.same_but_numbers) == ("none", 0, 1)
    assert pair.text == "sums v1: none of 1 items stands in the training data; 1 the same but for numbers"


def test_a_run_without_anything_to_compare_is_launched_as_ever(maker: Maker) -> None:
    run = maker.launched("plain", eval={"holdout": 4})
    assert selectors.at_launch(run) == {
        "by": maker.actor.username,
        "at": run.launch_overlap.at,
        "acknowledged": False,
        "pairs": [],
    }
    assert not AuditEntry.objects.filter(kind="overlap_seen").exists()
    assert selectors.at_launch(maker.run()) is None
    run_submit(run=maker.run("again"), actor=maker.actor)
