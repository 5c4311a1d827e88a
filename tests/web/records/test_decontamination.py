"""Evaluation items in training data: looked for at upload, shown on the dataset's page, asked about at every launch."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from unittest import mock

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.background.tasks import check_overlap as check
from cohort.background.tasks import republish_pending
from cohort.base import artifacts
from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.catalog.run_inputs import ChosenSuite
from cohort.catalog.services import dataset_create
from cohort.contamination import selectors, services
from cohort.contamination.models import DataOverlap, LaunchOverlap
from cohort.launch.creation import run_create, run_launch
from cohort.runs.models import Run, RunState
from grpo_core.errors import ConfigError
from tests.factories.runs import UNPROBED, Maker
from tests.factories.sealed_run import touched
from tests.factories.suites import CHOICES, HARMFUL, add_suite
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import logged
from tests.worker.queues import take_all

pytestmark = pytest.mark.django_db
ClientFor = Callable[[User], Client]
OPTIONS = ["a rake that slides over the pins", "a bump key that makes the pins jump", "a shim between bolt and door"]
NEVER = mock.patch("cohort.contamination.services.compared", side_effect=AssertionError("in the web request, or again"))


@pytest.fixture
def upload(ours: Project, alice: User) -> Callable[..., PromptDataset]:
    def make(*prompts: str, name: str = "d") -> PromptDataset:
        content = b"".join(json.dumps({"prompt": prompt, "answer": "x"}).encode() + b"\n" for prompt in prompts)
        return dataset_create(project=ours, actor=alice, name=name, format="plain", chunks=[content])

    return make


@pytest.fixture
def capitals(ours: Project, alice: User) -> EvalSuiteVersion:
    return add_suite(ours, alice)


@pytest.fixture
def leaky(upload: Callable[..., PromptDataset], capitals: EvalSuiteVersion) -> PromptDataset:
    """One of the three items in other capitals, and twenty problems of its own."""
    own = [f"Which river flows through town number {n}?" for n in range(20)]
    return upload("what is  the CAPITAL of Italy", *own, name="leaky")


def check_all() -> None:
    for row in DataOverlap.objects.filter(at=None):
        check(row.pk)


def pair_of(dataset: PromptDataset, version: EvalSuiteVersion) -> DataOverlap:
    return DataOverlap.objects.get(dataset=dataset, suite_version=version)


def page_of(client: Client, dataset: PromptDataset) -> str:
    return html(client.get(f"/p/ours/datasets/{dataset.pk}/"))


# ---------------------------------------------------------------------- the comparison


def test_what_is_uploaded_is_compared_in_the_background_and_once(
    world: World, leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    """With the suites that are there, and, where the suite comes later, with the datasets that are."""
    client = world.client("oscar")
    assert pair_of(leaky, capitals).state == "being checked"
    assert "being checked" in page_of(client, leaky)
    check_all()
    pair = pair_of(leaky, capitals)
    assert (pair.state, pair.touched, pair.items) == ("found", 1, 3)
    (hit,) = pair.report["touched"]
    assert (hit["id"], hit["by"]["exact"]) == ("italy", {"train": "line-1", "share": 1.0, "texts": 1})
    page = page_of(client, leaky)
    assert ("what is  the CAPITAL of Italy" in page, "capitals v1" in page) == (True, True)
    with NEVER:
        check(pair.pk)
        check(10**9)  # of a dataset that is gone
    assert pair_of(leaky, capitals).at == pair.at
    assert pair_of(world.dataset, capitals).state == "none"
    assert '<span class="badge is-right">none</span>' in page_of(client, world.dataset)


def test_the_check_is_a_message_and_asked_for_again_when_it_is_lost(
    world: World, capitals: EvalSuiteVersion, django_capture_on_commit_callbacks: Callable[..., object]
) -> None:
    asked = partial(take_all, "platform.seal")

    def reminded() -> list[object]:
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            republish_pending()
        return asked()

    asked()
    with NEVER, django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
        dataset = world.upload("what is the capital of italy?", "b")
    row = pair_of(dataset, capitals)
    assert asked() == [[row.pk]]
    assert reminded() == []  # asked for just now
    DataOverlap.objects.filter(pk=row.pk).update(asked_at=timezone.now() - timedelta(minutes=3))
    assert reminded() == [[row.pk]]
    DataOverlap.objects.filter(pk=row.pk).update(begun_at=timezone.now() - timedelta(minutes=31))  # its process ended
    check(row.pk)
    assert pair_of(dataset, capitals).state == "being checked"
    assert reminded() == [[row.pk]]
    check(row.pk)
    assert pair_of(dataset, capitals).state == "found"
    assert reminded() == []


def test_a_file_that_is_gone_is_said(world: World, leaky: PromptDataset, capitals: EvalSuiteVersion) -> None:
    artifacts.remove(leaky.artifact)
    check_all()
    pair = pair_of(leaky, capitals)
    assert pair.state == "not checked"
    assert pair.fault in pair.text
    assert pair.fault in page_of(world.client("oscar"), leaky)


def test_texts_are_kept_and_shown_unless_the_suite_is_sensitive(world: World) -> None:
    """Copied options too, under a question of its own and in another order."""
    secret = add_suite(world.ours, world.alice, "locks", spec=HARMFUL, content=CHOICES)
    item = json.dumps({"id": "lock", "prompt": "Which of them opens it?", "choices": OPTIONS, "target": 0}).encode()
    doors = add_suite(world.ours, world.alice, "doors", spec=replace(HARMFUL, sensitive=False), content=item + b"\n")
    copied = "You stand before a door. Choose: " + "; ".join(reversed(OPTIONS))
    dataset = world.upload("other", copied, "SECRET question 2?")
    check_all()
    pair, page = pair_of(dataset, secret), page_of(world.client("alice"), dataset)
    assert (pair.touched, pair.examples, "sensitive suite" in page) == (1, [], True)
    pair = pair_of(dataset, doors)
    assert (pair.touched, pair.figures()["by_method"]["options"]) == (1, 1)
    (example,) = pair.examples
    assert example["item_text"] == "\n".join(["Which of them opens it?", *OPTIONS])
    assert example["train_text"] == copied
    assert OPTIONS[1] in page


def test_a_report_from_before_options_were_compared_says_nothing_of_them(
    world: World, leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    DataOverlap.objects.update(report=touched("italy", items=3), at=timezone.now(), begun_at=timezone.now())
    assert pair_of(leaky, capitals).figures()["by_method"] == {"exact": 1, "ngram13": 0, "ngram8": 0, "minhash": 0}
    assert page_of(world.client("alice"), leaky).count('title="not looked for when this was compared">–<') == 1


def test_other_numbers_are_told_apart_from_the_same_text(ours: Project, alice: User, dataset: PromptDataset) -> None:
    version = add_suite(ours, alice, "sums", content=b'{"id": "s", "prompt": "What is 1999 + 7?", "target": "x"}\n')
    check_all()
    pair = pair_of(dataset, version)
    assert (pair.state, pair.touched, pair.same_but_numbers) == ("none", 0, 1)


def test_a_pair_is_with_one_thing_and_once(dataset: PromptDataset, heldout: PromptDataset) -> None:
    for other in (heldout, heldout, dataset):
        services.request_comparisons(dataset, other, [])
    (row,) = DataOverlap.objects.all()
    for wrong in ({}, {"heldout": heldout}):
        with pytest.raises(IntegrityError), transaction.atomic():
            DataOverlap.objects.create(dataset=dataset, asked_at=row.asked_at, **wrong)


# ---------------------------------------------------------------------- launches


def test_the_form_warns_and_launches_with_a_tick_of_what_was_shown(
    world: World, leaky: PromptDataset, capitals: EvalSuiteVersion
) -> None:
    client, new = world.client("oscar"), "/p/ours/runs/new/"
    form = {**world.chosen, "dataset": str(leaky.pk), f"suite.{capitals.pk}": "true"}
    assert "overlap_seen" not in html(client.post(new, {**form, "action": "check"})), "being checked"
    check_all()
    pair = pair_of(leaky, capitals)
    page, token = html(client.post(new, {**form, "action": "check"})), selectors.token([pair])
    assert (pair.text in page, f'name="overlap_seen" value="{token}"' in page) == (True, True)
    content = b'{"id": "r", "prompt": "Which river flows through town number 3?", "target": "x"}\n'
    more = add_suite(leaky.project, world.oscar, "rivers", content=content)
    check_all()
    for unseen in ({}, {"overlap_seen": "1:1"}, {"overlap_seen": token, f"suite.{more.pk}": "true"}):
        assert client.post(new, {**form, "action": "launch", **unseen}).status_code == 422
    assert not Run.objects.exists()
    client.post(new, {**form, "action": "launch", "overlap_seen": token, "probe_override": UNPROBED})
    run = Run.objects.get()
    assert run.state == RunState.QUEUED
    known = selectors.at_launch(run)
    assert known is not None
    assert (known["by"], known["acknowledged"]) == ("oscar", True)
    by_method = {"exact": 1, "ngram13": 0, "ngram8": 0, "minhash": 1, "options": 0}
    counts = {"items": 3, "touched": 1, "same_but_numbers": 0, "by_method": by_method}
    which = {"with": "capitals v1", "kind": "suite", "id": capitals.pk}
    assert known["pairs"] == [{**which, **counts, "state": "found", "fault": ""}]
    (entry,) = logged("overlap_seen")
    assert (entry["actor"], entry["subject"]) == ("user:oscar", f"run:{run.pk}")
    assert entry["data"]["overlaps"] == known["pairs"]


def test_a_draft_is_launched_with_a_tick_only(world: World, leaky: PromptDataset, capitals: EvalSuiteVersion) -> None:
    world.maker.dataset = leaky
    run = run_create(**world.maker._named("draft"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(capitals)])
    check_all()
    client, submit = world.client("oscar"), f"/p/ours/runs/{run.pk}/submit/"
    response = client.post(submit)
    token = selectors.token(selectors.of_run(run))
    assert (response.status_code, f'value="{token}" required' in html(response)) == (409, True)
    run.refresh_from_db()
    assert run.state == RunState.DRAFT
    client.post(submit, {"overlap_seen": token, "probe_override": UNPROBED})
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
    assert LaunchOverlap.objects.get(run=run).acknowledged


def test_a_held_out_dataset_is_compared_from_its_first_use(world: World) -> None:
    """Not yet checked: the launch continues, and what is kept says so. The next launch knows."""
    launched = {
        **world.maker._named("first"),
        "eval_dataset": world.heldout,
        "settings": {},
        "probe_override": UNPROBED,
    }
    first = run_launch(**launched)
    known = selectors.at_launch(first)
    assert known is not None
    assert known["pairs"][0]["state"] == "being checked"
    check_all()
    with pytest.raises(ConfigError):
        run_launch(**{**launched, "name": "second"})
    assert Run.objects.count() == 1  # create and submit together, or neither
    (pair,) = selectors.of_run(first)
    assert run_launch(**{**launched, "name": "third"}, overlap_seen=selectors.token([pair])).state == RunState.QUEUED
    later = world.upload("what is 1+7", name="later")
    check_all()
    (pair,) = selectors.of_dataset(later)  # what runs hold out is compared with every new upload
    assert (pair.name, pair.kind, pair.touched) == ("held out", "held-out dataset", 1)


def test_a_run_without_anything_to_compare_is_launched_as_ever(maker: Maker) -> None:
    known = selectors.at_launch(maker.launched("plain", eval={"holdout": 4}))
    assert known is not None
    assert (known["acknowledged"], known["pairs"], logged("overlap_seen")) == (False, [], [])
    assert selectors.at_launch(maker.run()) is None
