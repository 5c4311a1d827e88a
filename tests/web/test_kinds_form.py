"""The run form of the kinds besides GRPO: the kind's own fields and rows, and copies that make the run again."""

import json
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.launch.requests import RunRequest, request_of
from cohort.runs.models import Run
from cohort.web.launch.from_yaml import form_from_yaml
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import fields
from grpo_core.config.kinds import CONFIGS, config_from_text
from tests.factories.kinds import conversation, conversations, lines, preferences, sft_run
from tests.factories.runs import UNPROBED
from tests.web.api_calls import ApiCaller
from tests.web.form_page import as_browser, error, selected
from tests.web.pages import html

NEW = "/p/ours/runs/new/"
HTMX = {"HX-Request": "true"}


@pytest.fixture
def chats(ours: Project, oscar: User) -> PromptDataset:
    return conversations(ours, oscar)


@pytest.fixture
def opened(operator: Client, base_model: BaseModel, chats: PromptDataset) -> dict[str, str]:
    """What a browser would send of the form as it opens."""
    return as_browser(html(operator.get(f"{NEW}?kind=sft")))


def test_every_kind_has_its_form_and_only_its_own_choices(
    operator: Client, viewer: Client, ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    preferences(ours, oscar)
    for kind in CONFIGS:
        page = html(operator.get(f"{NEW}?kind={kind}"))
        assert f'href="{NEW}?kind={kind}" aria-current="page"' in page
        assert f'<input type="hidden" name="kind" value="{kind}">' in page
        assert ('name="verifier_version"' in page) == (kind in ("grpo", "sample")), kind
        assert ('name="algorithm.kl.coef"' in page) == (kind == "grpo"), kind
        assert ('name="optim.batch_size"' in page) == (kind in ("sft", "distill", "reward_model")), kind
    assert viewer.get(f"{NEW}?kind=sft").status_code == 403


def test_fine_tuning_is_launched_from_the_form(
    operator: Client, opened: dict[str, str], chats: PromptDataset, base_model: BaseModel
) -> None:
    assert opened["dataset"] == str(chats.pk)
    assert opened["data.holdout"] == "4", "a fifth of 20"
    response = operator.post(NEW, {**opened, "name": "tuned", "optim.steps": "9", "action": "launch"})
    run = Run.objects.get()
    assert (response.status_code, response["Location"]) == (302, f"/p/ours/runs/{run.pk}/")
    assert (run.kind, run.state, run.name, run.steps_total) == ("sft", "queued", "tuned", 9)
    assert (run.dataset, run.base_model, run.config["data"]["holdout"]) == (chats, base_model, 4)


def test_a_form_opens_with_the_defaults_of_its_kind() -> None:
    """Which may be others in a part than the part's own."""
    for kind, path, default in (
        ("sample", "traces.tokens", ["none"]),
        ("sft", "eval.before", False),
        ("reward_model", "optim.lr", 1e-5),
        ("grpo", "eval.before", True),
    ):
        assert fields(kind)[path].default == default, path


def test_the_summary_counts_epochs_and_tokens(operator: Client, opened: dict[str, str]) -> None:
    """20 rows, 4 held out; 8 steps of 4 rows are 32 rows, 2 epochs of 16; 1024 tokens each at most."""
    changed = {**opened, "optim.steps": "8", "optim.batch_size": "4", "action": "check"}
    page = html(operator.post(NEW, changed, headers=HTMX))
    for part in ("20 conversations", "32, 2 epochs", "32,768", "4 of the dataset"):
        assert part in page, part


def test_faults_are_at_the_fields_of_the_kind(operator: Client, opened: dict[str, str]) -> None:
    page = html(operator.post(NEW, {**opened, "optim.batch_size": "0", "data.holdout": "20", "action": "launch"}))
    assert error(page, "f-optim-batch-size")
    page = html(operator.post(NEW, {**opened, "data.holdout": "20", "action": "launch"}))
    assert "nothing would be left" in error(page, "f-data-holdout")
    assert not Run.objects.exists()


def test_a_dataset_of_another_content_cannot_be_chosen(
    operator: Client, opened: dict[str, str], dataset: PromptDataset
) -> None:
    page = html(operator.post(NEW, {**opened, "dataset": str(dataset.pk), "action": "launch"}))
    assert "not in this project" in error(page, "f-dataset")
    assert not Run.objects.exists()


def test_further_datasets_are_ticked(
    operator: Client, ours: Project, oscar: User, opened: dict[str, str], chats: PromptDataset
) -> None:
    more = conversations(ours, oscar, "more", lines(*map(conversation, range(100, 103))))
    held = conversations(ours, oscar, "held", lines(*map(conversation, range(200, 202))))
    data: dict[str, Any] = {**opened, "dataset": str(chats.pk), "more": ["", str(more.pk)], "heldout": str(held.pk)}
    operator.post(NEW, {**data, "data.holdout": "0", "action": "draft"})
    run = Run.objects.get()
    assert run.config["data"]["more"] == [f"inputs/{more.sha256}.jsonl"]
    assert run.config["data"]["heldout_path"] == f"inputs/{held.sha256}.jsonl"
    page = html(operator.get(f"{NEW}?clone={run.pk}"))
    again = as_browser(page)
    assert (again["kind"], again["more"], selected(page, "heldout")) == ("sft", str(more.pk), str(held.pk))


def test_a_clone_makes_the_same_config(
    operator: Client, ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    run = sft_run(ours, oscar, base_model, chats, model={"lora": {"rank": 4}}, seed=7)
    form = RunForm.clone(run)
    config = form.check()
    assert config is not None, (form.problems, form.general)
    assert config.digest() == run.config_digest


def test_yaml_of_any_kind_fills_the_form(
    ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    more = conversations(ours, oscar, "more", lines(*map(conversation, range(100, 103))))
    run = sft_run(ours, oscar, base_model, chats, seed=3)
    text = run.parsed_config.to_yaml()
    form = form_from_yaml(ours, text)
    assert (form.problems, form.general, form.kind) == ({}, [], "sft")
    assert form.config is not None
    assert form.config.digest() == run.config_digest
    missing = text.replace("more: []", "more: [inputs/nowhere.jsonl]")
    assert missing != text
    assert list(form_from_yaml(ours, missing).problems) == ["more"]
    known = text.replace("more: []", f"more: [inputs/{more.sha256}.jsonl]")
    assert form_from_yaml(ours, known).more == (more,)


def test_copies_are_of_the_kind(operator: Client, opened: dict[str, str], chats: PromptDataset) -> None:
    json_wanted = {"Accept": "application/json"}
    text = operator.post(NEW, {**opened, "action": "yaml"}, headers=json_wanted).json()["text"]
    assert config_from_text(text).kind == "sft"
    call = operator.post(NEW, {**opened, "action": "api"}, headers=json_wanted).json()["text"]
    request = json.loads(call[call.index("{\n") : call.rindex("}") + 1])
    assert (request["kind"], request["dataset"], request["verifier"]) == ("sft", chats.name, None)


def test_a_sweep_is_of_the_fields_of_the_kind(operator: Client, opened: dict[str, str]) -> None:
    swept = {**opened, "sweep": "optim.lr: 1e-5, 2e-5", "action": "launch"}
    assert operator.post(NEW, swept).status_code == 302
    assert sorted(run.config["optim"]["lr"] for run in Run.objects.all()) == [1e-5, 2e-5]
    assert {run.kind for run in Run.objects.all()} == {"sft"}
    page = html(operator.post(NEW, {**opened, "sweep": "G: 4, 8", "action": "launch"}))
    assert "G is no field" in page, "fine-tuning has no groups"


def test_sampling_is_launched_with_a_reason_for_its_unprobed_reward(
    operator: Client, base_model: BaseModel, dataset: PromptDataset, verifier_version: VerifierVersion
) -> None:
    sent = as_browser(html(operator.get(f"{NEW}?kind=sample")))
    sent |= {"dataset": str(dataset.pk), "verifier_version": str(verifier_version.pk), "action": "launch"}
    assert operator.post(NEW, sent).status_code == 422
    response = operator.post(NEW, {**sent, "probe_override": UNPROBED})
    assert response.status_code == 302, html(response)
    run = Run.objects.get()
    assert (run.kind, run.state) == ("sample", "queued")


def test_an_unknown_kind_is_refused(operator: Client, opened: dict[str, str]) -> None:
    page = html(operator.post(NEW, {**opened, "kind": "poem", "action": "launch"}))
    assert "kind is one of" in page
    assert not Run.objects.exists()


# ---------------------------------------------------------------- API


def test_the_api_makes_a_run_of_any_kind_and_gives_its_request(
    caller: ApiCaller, ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    asked = {
        "kind": "sft",
        "name": "tuned",
        "base_model": base_model.name,
        "dataset": chats.name,
        "settings": {"optim": {"steps": 4, "batch_size": 2}},
    }
    response = caller.post(asked)
    assert response.status_code == 201, response.json()
    run = Run.objects.get(pk=response.json()["id"])
    assert (run.kind, run.steps_total) == ("sft", 4)
    request = request_of(run)
    assert (request.kind, request.verifier, request.settings["optim"]["batch_size"]) == ("sft", None, 2)
    assert RunRequest.model_validate(request.model_dump()) == request
