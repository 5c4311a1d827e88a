"""Runs of the kinds besides GRPO: made from rows, launched without a probe, and shown without what they do not have."""

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.lab.models import LaunchProbe
from cohort.launch.configs import FurtherData
from cohort.launch.creation import run_create, run_submit
from cohort.runs.attempts import attempt_inputs
from cohort.runs.models import Run, RunEvent
from cohort.runs.run_values import evaluation_values_store
from cohort.runs.services import NotPossible, run_extend
from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.kinds import config_from_whole
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.config.sft import SftConfig
from grpo_core.errors import ConfigError
from tests.factories.kinds import conversation, conversations, lines, preferences, sft_run
from tests.factories.runs import UNPROBED, Maker, add_evaluation, add_steps, put_in
from tests.web.pages import html
from tests.web.run_page import queries


@pytest.fixture
def chats(ours: Project, oscar: User) -> PromptDataset:
    return conversations(ours, oscar)


def faults(error: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    return [problem.path for problem in error.value.problems]


# ---------------------------------------------------------------- services


def test_fine_tuning_is_launched_without_a_reward_or_a_probe(
    ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    run = sft_run(ours, oscar, base_model, chats)
    assert (run.kind, run.state, run.steps_total, run.verifier_version) == ("sft", "draft", 5, None)
    assert (run.needs_sandbox, run.has_samples) == (False, False)
    config = config_from_whole(run.config)
    assert isinstance(config, SftConfig)
    assert config.data.path == f"inputs/{chats.sha256}.jsonl"
    run_submit(run=run, actor=oscar)
    run.refresh_from_db()
    assert run.state == "queued"
    assert not LaunchProbe.objects.filter(run=run).exists()
    entry = AuditEntry.objects.get(kind="run_submitted")
    assert "reward_probe" not in json.loads(bytes(entry.body))["data"]


def test_further_datasets_are_files_that_the_worker_fetches(
    ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    more = conversations(ours, oscar, "more", lines(*map(conversation, range(100, 103))))
    held = conversations(ours, oscar, "held", lines(*map(conversation, range(200, 202))))
    run = sft_run(ours, oscar, base_model, chats, further=FurtherData(more=[more], heldout=held))
    config = run.parsed_config
    assert isinstance(config, SftConfig)
    assert config.data.more == (f"inputs/{more.sha256}.jsonl",)
    assert config.data.heldout_path == f"inputs/{held.sha256}.jsonl"
    paths = {file.path: file.sha256 for _, file in attempt_inputs(run=run)}
    files = {path: sha256 for path, sha256 in paths.items() if path.endswith(".jsonl")}
    assert files == {f"inputs/{row.sha256}.jsonl": row.sha256 for row in (chats, more, held)}
    assert [row.role for row in run.run_datasets.all()] == ["more", "heldout"]


def test_a_reward_model_and_a_sampling_run_are_made_of_their_rows(
    ours: Project,
    oscar: User,
    base_model: BaseModel,
    dataset: PromptDataset,
    verifier_version: VerifierVersion,
) -> None:
    pairs = preferences(ours, oscar)
    of = {"project": ours, "actor": oscar, "base_model": base_model}
    judge = run_create(
        kind="reward_model", name="judge", dataset=pairs, settings={"data": {"holdout": 4}, "optim": {"steps": 7}}, **of
    )
    assert isinstance(judge.parsed_config, RewardModelConfig)
    assert (judge.kind, judge.steps_total) == ("reward_model", 7)
    sampled = run_create(
        kind="sample",
        name="sampled",
        dataset=dataset,
        verifier_version=verifier_version,
        settings={"sampling": {"prompts_per_step": 8, "group_size": 2}, "data": {"limit": 18}},
        **of,
    )
    assert isinstance(sampled.parsed_config, SampleConfig)
    assert sampled.steps_total == 3, "18 problems, 8 a step"
    with pytest.raises(ConfigError) as refused:
        run_submit(run=sampled, actor=oscar)
    assert faults(refused) == ["probe_override"], "it has a reward, which nobody probed"
    run_submit(run=sampled, actor=oscar, probe_override=UNPROBED)
    assert LaunchProbe.objects.filter(run=sampled, overridden=True).exists()


def test_rows_that_a_kind_has_no_place_for_are_refused(
    ours: Project,
    oscar: User,
    base_model: BaseModel,
    chats: PromptDataset,
    dataset: PromptDataset,
    verifier_version: VerifierVersion,
) -> None:
    of: dict[str, Any] = {"project": ours, "actor": oscar, "name": "x", "base_model": base_model, "settings": {}}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"kind": "sft", "dataset": dataset}, ["dataset"]),
        ({"kind": "sft", "dataset": chats, "verifier_version": verifier_version}, ["verifier_version"]),
        ({"kind": "sft", "dataset": chats, "further": FurtherData(replay=chats)}, ["replay"]),
        ({"kind": "grpo", "dataset": dataset}, ["verifier_version"]),
        ({"kind": "grpo", "dataset": chats, "verifier_version": verifier_version}, ["dataset"]),
        ({"kind": "distill", "dataset": chats}, ["dataset"]),
        ({"kind": "sft", "dataset": chats, "further": FurtherData(heldout=chats)}, ["heldout"]),
        ({"kind": "sft", "dataset": chats, "settings": {"data": {"path": "x"}}}, ["data.path"]),
        ({"kind": "sft", "dataset": chats, "settings": {"data": {"holdout": 20}}}, ["data.holdout"]),
        ({"kind": "sample", "dataset": dataset}, ["verifier_version"]),
    ]
    for given, expected in cases:
        if given["kind"] == "grpo":
            given = {**given, "settings": {"eval": {"before": False, "after": False}}}
        with pytest.raises(ConfigError) as refused:
            run_create(**{**of, **given})
        assert faults(refused) == expected, given


def test_an_objective_learns_from_its_own_rows(ours: Project, oscar: User, base_model: BaseModel) -> None:
    scores = preferences(
        ours, oscar, "scores", lines(*({"prompt": f"{n}?", "completion": "x", "score": n / 9} for n in range(9)))
    )
    of: dict[str, Any] = {"kind": "reward_model", "project": ours, "actor": oscar, "base_model": base_model}
    held = {"data": {"holdout": 2}}
    with pytest.raises(ConfigError) as refused:
        run_create(name="pairs", dataset=scores, settings=held, **of)
    assert faults(refused) == ["dataset"]
    run = run_create(name="scores", dataset=scores, settings={**held, "objective": "regression"}, **of)
    assert run.kind == "reward_model"


def test_a_sampling_run_has_a_step_for_every_batch_and_no_more(
    ours: Project, oscar: User, maker: Maker, verifier_version: VerifierVersion
) -> None:
    run = run_create(kind="sample", **maker._named("sampled"), settings={})
    put_in(run, "failed")
    with pytest.raises(NotPossible, match="every batch"):
        run_extend(run=run, actor=oscar, steps=1)


# ---------------------------------------------------------------- pages


@pytest.fixture
def tuned(ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset, maker: Maker) -> Run:
    run = sft_run(ours, oscar, base_model, chats, state="training")
    attempt = maker.attempt(run)
    learned = {"loss": 1.25, "mean_token_accuracy": 0.5, "eval/loss": 1.5, "epoch": 0.2, "grad_norm": 2.0}
    add_steps(attempt, [learned | {"learning_rate": 2e-5, "num_tokens": 100.0} for _ in range(3)])
    return run


def test_the_page_of_fine_tuning_shows_its_loss_and_no_groups(
    viewer: Client, stranger: Client, tuned: Run, chats: PromptDataset
) -> None:
    address = f"/p/ours/runs/{tuned.pk}/"
    page = html(viewer.get(address))
    shown = ("Fine-tuning", "Token accuracy", "Held-out loss", "batch 4", f"/p/ours/datasets/{chats.pk}/")
    assert [part for part in shown if part not in page] == []
    absent = ("Groups with signal", "KL to reference", "Newest groups", "Clipped tokens", f"{address}groups/", "β ")
    assert [part for part in absent if part in page] == []
    for tab in ("groups", "samples", "review"):
        assert viewer.get(f"{address}{tab}/").status_code == 404, f"{tab}: it has none"
    for tab in ("evaluations", "attempts", "logs", "config", "events"):
        assert viewer.get(f"{address}{tab}/").status_code == 200, tab
    assert stranger.get(address).status_code == 404
    live = viewer.get(f"{address}live/?tab=overview", headers={"HX-Request": "true"})
    assert live.status_code == 200
    assert "live-groups" not in html(live)


def test_config_and_csv_are_those_of_the_kind(viewer: Client, tuned: Run) -> None:
    text = viewer.get(f"/p/ours/runs/{tuned.pk}/config.yaml").content.decode()
    assert text.startswith("kind: sft\n")


def test_the_list_names_the_kind_and_finds_by_it(viewer: Client, tuned: Run, maker: Maker) -> None:
    maker.run("adder")
    page = html(viewer.get("/p/ours/runs/?q=kind:sft"))
    assert "tuned" in page
    assert "adder" not in page
    assert '<a href="/p/ours/runs/?q=kind:sft">Fine-tuning</a>' in page
    assert "tuned" not in html(viewer.get("/p/ours/runs/?q=kind:grpo"))
    assert "tuned" in html(viewer.get("/p/ours/runs/?q=optim.batch_size=4"))


def test_a_list_of_many_kinds_takes_as_many_queries(
    viewer: Client, ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    sft_run(ours, oscar, base_model, chats, name="first")
    few = queries(lambda: viewer.get("/p/ours/runs/"))
    for number in range(4):
        sft_run(ours, oscar, base_model, chats, name=f"more {number}")
    assert queries(lambda: viewer.get("/p/ours/runs/")) == few


def test_runs_of_two_kinds_are_compared(viewer: Client, tuned: Run, maker: Maker) -> None:
    other = maker.run("adder")
    page = html(viewer.get(f"/p/ours/runs/compare/?run={tuned.pk}&run={other.pk}"))
    assert "Batch size" in page
    assert "Group size G" in page or "G" in page


def test_a_draft_is_launched_from_its_page_with_no_reason_to_give(
    operator: Client, viewer: Client, ours: Project, oscar: User, base_model: BaseModel, chats: PromptDataset
) -> None:
    run = sft_run(ours, oscar, base_model, chats)
    assert viewer.post(f"/p/ours/runs/{run.pk}/submit/").status_code == 403
    assert operator.post(f"/p/ours/runs/{run.pk}/submit/").status_code == 302
    run.refresh_from_db()
    assert run.state == "queued"


def test_the_evaluations_of_fine_tuning_show_its_held_out_loss(viewer: Client, tuned: Run) -> None:
    address = f"/p/ours/runs/{tuned.pk}/evaluations/"
    assert "This run is not evaluated" in html(viewer.get(address)), "nothing was measured yet"
    attempt = tuned.attempts.get()
    for phase, loss in (("before", 1.75), ("after", 1.5)):
        data = {"phase": phase, "step": 3, "loss": loss, "mean_token_accuracy": 0.625, "tokens": 90, "conversations": 4}
        RunEvent.objects.create(run=tuned, attempt=attempt, at=timezone.now(), kind="heldout_loss", data=data)
    page = html(viewer.get(address))
    shown = ("before training", "1.7500", "after training", "1.5000", "62.5")
    assert [part for part in shown if part not in page] == []
    assert "This run is not evaluated" not in page


def test_a_reward_model_is_shown_without_groups_and_with_its_held_out_pairs(
    viewer: Client, ours: Project, oscar: User, base_model: BaseModel, maker: Maker
) -> None:
    settings = {"data": {"holdout": 4}, "optim": {"steps": 7}}
    of: dict[str, Any] = {"kind": "reward_model", "project": ours, "actor": oscar, "base_model": base_model}
    judge = run_create(name="judge", dataset=preferences(ours, oscar), settings=settings, **of)
    put_in(judge, "succeeded")
    attempt = maker.attempt(judge)
    add_steps(attempt, [{"loss": 0.5, "rewards/accuracies": 0.75, "eval/heldout/score": 0.25}])
    for phase, right in (("before", 1), ("after", 3)):
        add_evaluation(attempt, phase, [float(index < right) for index in range(4)], suite=HELDOUT)
    evaluation_values_store(run_id=judge.pk)
    page = html(viewer.get(f"/p/ours/runs/{judge.pk}/"))
    assert "Groups with a signal" not in page, "there are no groups to expect a signal of"
    listed = html(viewer.get("/p/ours/runs/"))
    assert re.search(r"25\.0\s%\s*→\s*75\.0\s%", listed)
    assert "held-out pairs" in listed
    assert "by None" not in listed


def test_a_sampling_run_shows_what_its_filter_keeps(
    viewer: Client, ours: Project, oscar: User, maker: Maker, verifier_version: VerifierVersion
) -> None:
    run = run_create(kind="sample", **maker._named("sampled"), settings={})
    put_in(run, "failed")
    metrics = {
        "reward": 0.5,
        "dataset/kept": 0.25,
        "dataset/rows": 5.0,
        "frac_informative": 0.0,
        "completions/right": 0.5,
    }
    add_steps(maker.attempt(run), [metrics | {"frac_reward_zero_std": 1.0}])
    page = html(viewer.get(f"/p/ours/runs/{run.pk}/"))
    shown = ("Kept completions", "Right completions", "25\xa0%", "it would have been written")
    assert [part for part in shown if part not in page] == []
    assert [part for part in ("Learning signal", "Zero variance", "Left out of the update") if part in page] == []
