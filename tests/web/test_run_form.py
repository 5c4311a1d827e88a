"""The run form: what it makes, which field a refusal names, and that no way into it loses a setting:
a preset, another run, YAML, a setting that is idle under the other choices.
"""

import json
import re
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import PromptDataset
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.runs.models import Run
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.shown import fields_shown, groups_shown
from grpo_core.config.preset_differences import diff
from grpo_core.config.presets import PRESETS
from grpo_core.config.run import RunConfig
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, dataset_copies
from tests.tables import cases
from tests.web.conftest import ClientFor
from tests.web.form_page import as_browser, error, selected, value
from tests.web.pages import html
from tests.web.run_page import page_of, queries

NEW = "/p/ours/runs/new/"
HTMX = {"HX-Request": "true"}


def checked(maker: Maker, texts: dict[str, str]) -> RunForm:
    form = RunForm.posted(maker.project, texts)
    form.check()
    return form


def states(form: RunForm, *paths: str) -> list[str]:
    """Of each field: shown (""), out of the way (idle), or shown although nothing uses it (unused)."""
    shown = fields_shown(form)
    return [shown[path].state for path in paths]


# ---------------------------------------------------------------- launch and draft


def test_the_form_launches_its_run(
    operator: Client, oscar: User, chosen: dict[str, str], heldout: PromptDataset
) -> None:
    data = {
        "variant": "group/none/0",
        "algorithm.kl.coef": "0.04",
        "algorithm.clip_high": "0.3",
        "optim.lr": "3e-4",
        "checkpoints.final": "false",
        "eval.holdout": "0",
    }
    named = {"preset": "dapo", "eval_dataset": str(heldout.pk), "action": "launch"}
    response = operator.post(NEW, chosen | data | named)
    run = Run.objects.get()
    assert (response.status_code, response["Location"]) == (302, f"/p/ours/runs/{run.pk}/")
    assert (run.state, run.name, run.preset, run.created_by) == ("queued", "adder", "dapo", oscar)
    config = RunConfig.from_dict(run.config)
    assert (config.algorithm.scale, config.algorithm.std_ddof) == ("none", 0)
    assert (config.algorithm.kl.coef, config.algorithm.clip_high) == (0.04, 0.3)
    assert (config.optim.lr, config.checkpoints.final) == (3e-4, False)
    assert config.data.path == f"inputs/{run.dataset.sha256}.jsonl"
    assert (run.eval_dataset, config.eval.path) == (heldout, f"inputs/{heldout.sha256}.jsonl")


def test_a_launch_checks_its_config_once(
    operator: Client, chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the texts that were posted to the row in the queue."""
    checks, validate = [], RunConfig.model_validate

    def counted(*given: Any, **options: Any) -> RunConfig:
        checks.append(given)
        return validate(*given, **options)

    monkeypatch.setattr(RunConfig, "model_validate", counted)
    assert operator.post(NEW, chosen | {"action": "launch"}).status_code == 302
    assert Run.objects.get().state == "queued"
    assert len(checks) == 1


# ---------------------------------------------------------------- refusals


def test_a_reference_that_the_reward_cannot_read_is_refused_with_row_and_reason(
    operator: Client, chosen: dict[str, str], maker: Maker
) -> None:
    answers = {"a": "2", "c": "3", "b": "many"}
    rows = "".join(json.dumps({"id": name, "prompt": name, "answer": text}) + "\n" for name, text in answers.items())
    given = {"project": maker.project, "actor": maker.actor}
    dataset = dataset_create(**given, name="odd", format="plain", chunks=[rows.encode()])
    numeric = verifier_version_create(**given, name="numeric", spec={"components": [{"name": "r", "kind": "numeric"}]})
    sent = {**chosen, "dataset": str(dataset.pk), "verifier_version": str(numeric.pk), "eval.holdout": "1"}
    reason = "odd: 1 of 3 problems have a reference that cannot be compared with"
    page = html(operator.post(NEW, sent | {"action": "check"}, headers=HTMX))
    assert reason in page
    assert "problem b" in page
    assert (reason in html(operator.post(NEW, sent | {"action": "launch"})), Run.objects.count()) == (True, 0)
    for other in ({"data.unreadable": "drop"}, {"data.limit": "2"}):
        assert reason not in html(operator.post(NEW, sent | other | {"action": "check"}, headers=HTMX))


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        *cases("runs/form_refusals", "sent", "field"),
        ({"optim.steps": "9" * 400}, "optim.steps"),
        ({"sampling.prompts_per_step": "9" * 5000}, "sampling.prompts_per_step"),
        ({"traces.groups_per_step": "9" * 400}, "traces.groups_per_step"),
        ({"name": "x" * 121}, "name"),
        ({"node_label": "a" * 41}, "node_label"),
    ],
)
def test_a_refusal_names_its_field_alone(
    maker: Maker, chosen: dict[str, str], sent: dict[str, str], field: str
) -> None:
    form = checked(maker, chosen | sent)
    assert form.config is None
    assert (set(form.problems), form.general) == ({field}, [])
    assert len(form.problems[field]) == 1


def test_rows_of_others_are_refused(
    maker: Maker, charlie: User, chosen: dict[str, str], tiny_model_folder: str
) -> None:
    theirs = Project.objects.get(slug="theirs")
    foreign = base_model_register(project=theirs, actor=charlie, name="secret model", path=tiny_model_folder)
    form = checked(maker, chosen | {"base_model": str(foreign.pk), "eval_dataset": chosen["dataset"]})
    assert set(form.problems) == {"base_model", "eval_dataset"}, "nor the training dataset as a held-out one"
    assert "secret model" not in str(form.problems)


@pytest.mark.parametrize("name", ["sampling.gruop_size", "algorithm.scale", "reward", "model.path", "eval.path"])
def test_an_unknown_field_is_refused_by_name(maker: Maker, chosen: dict[str, str], name: str) -> None:
    """Also parts of a config that the form decides otherwise: nothing that was sent is dropped without a word."""
    form = checked(maker, chosen | {name: "8"})
    assert form.config is None
    assert [text.split()[0] for text in form.general] == [name]


def test_faults_stand_beside_their_fields_with_what_was_typed(operator: Client, chosen: dict[str, str]) -> None:
    data = chosen | {"sampling.group_size": "eight", "optim.lr": "0", "dataset": "", "action": "launch"}
    response = operator.post(NEW, data)
    page = html(response)
    assert response.status_code == 422
    assert Run.objects.count() == 0
    for field in ("f-sampling-group-size", "f-optim-lr", "f-dataset"):
        assert error(page, field)
        assert re.search(rf'id="{field}"[^>]*aria-invalid="true"', page)
    assert page.count('class="error-text"') == 3
    assert (value(page, "sampling.group_size"), value(page, "optim.lr")) == ("eight", "0")
    folds = re.findall(r'<details class="fold"( open)?>\s*<summary>([^<]+)', page)
    assert [title for is_open, title in folds if is_open] == ["Optimiser"], "a fault opens its folded group"


def test_of_several_checkboxes_each_ticked_one_counts(operator: Client, maker: Maker, chosen: dict[str, str]) -> None:
    def posted(*ticked: str, action: str) -> Any:
        return operator.post(NEW, chosen | {"traces.tokens": ["", *ticked], "action": action})

    refused = posted("none", "best", action="launch")
    assert "none goes with no other choice" in error(html(refused), "f-traces-tokens")
    assert set(re.findall(r'name="traces.tokens" value="(\w*)" checked', html(refused))) == {"none", "best"}
    assert "must not be empty" in error(html(posted(action="launch")), "f-traces-tokens")
    assert posted("flagged", "best", action="launch").status_code == 302
    assert Run.objects.get().config["traces"]["tokens"] == ["flagged", "best"]
    kept = RunForm.posted(maker.project, chosen | {"traces.tokens": "best\nlongest"})
    page = html(operator.post(NEW, kept.texts | {"action": "check"}))
    assert "longest" in page, "what no choice is called is still seen"


def test_a_template_s_fault_ends_with_its_caret(operator: Client, chosen: dict[str, str]) -> None:
    typed = chosen | {"data.chat_template": "{{ messages }}\r\n  {{ a $ b }}"}
    page = operator.post(NEW, typed | {"action": "check"}).content.decode()
    assert "line 2: unexpected char &#x27;$&#x27; at 22\n  {{ a $ b }}\n       ^</div>" in page


def test_hostile_texts_come_back_escaped(operator: Client, chosen: dict[str, str]) -> None:
    data = chosen | {"name": HOSTILE, "sampling.group_size": HOSTILE, "preset": HOSTILE, "x.y": HOSTILE, HOSTILE: "1"}
    page = html(operator.post(NEW, data | {"action": "launch"}))
    assert HOSTILE_SHOWN in page
    assert "<script>alert" not in page
    assert "<b hx-get" not in page


# ---------------------------------------------------------------- checks while it is filled in


def test_a_check_swaps_what_stands_beneath_every_field(operator: Client, chosen: dict[str, str]) -> None:
    data = chosen | {"algorithm.kl.coef": "-0.1", "action": "check"}
    response = operator.post(NEW, data, headers=HTMX)
    page = html(response)
    assert response.status_code == 200, "htmx swaps nothing else"
    for name in re.findall(r'id="(said-f-[^"]+|sum-[^"]+|away-[^"]+)"', html(operator.get(NEW))):
        assert f'id="{name}" hx-swap-oob="true"' in page, name
    for answer in (page, html(operator.post(NEW, data))):
        assert error(answer, "f-algorithm-kl-coef")
        assert answer.startswith("<!doctype") is (answer is not page), "without htmx it is a page"


def test_the_form_costs_the_same_however_large_the_catalog(operator: Client, maker: Maker) -> None:
    maker.run("the first")
    few = queries(lambda: operator.get(NEW))
    for number in range(12):
        maker.run(f"run {number}")
        base_model_register(project=maker.project, actor=maker.actor, name=f"m{number}", path=maker.base_model.path)
    many = queries(lambda: operator.get(NEW))
    assert many == few <= 22


def offered(page: str, name: str) -> list[str]:
    """Ids in a list of the form, without those of no row."""
    options = re.search(rf'<select[^>]* name="{name}".*?</select>', page, re.DOTALL)
    assert options is not None
    return re.findall(r'<option value="(\d+)"', options[0])


def test_of_a_large_catalog_the_newest_are_offered_and_others_by_name(
    operator: Client, maker: Maker, chosen: dict[str, str]
) -> None:
    """The chosen rows are the oldest ones, which stay on offer."""
    assert 'name="find"' not in html(operator.get(NEW))
    rows = dataset_copies(maker.dataset, 300)
    newest = [str(row.pk) for row in reversed(rows)]
    data = chosen | {"action": "check", "eval.holdout": "3", "eval_dataset": newest[-1]}
    page = html(operator.post(NEW, data))
    assert offered(page, "dataset") == [chosen["dataset"], *newest[:200]]
    assert offered(page, "eval_dataset") == [newest[-1], *newest[:200]]
    assert offered(page, "base_model") == [chosen["base_model"]]
    page = html(operator.post(NEW, as_browser(page) | {"action": "find", "find": " SET 7."}))
    assert offered(page, "dataset") == [chosen["dataset"], newest[-8]]
    assert [selected(page, name) for name in ("dataset", "eval_dataset")] == [chosen["dataset"], newest[-1]]
    assert (value(page, "eval.holdout"), value(page, "find")) == ("3", " SET 7.")
    assert (
        offered(html(operator.post(NEW, data | {"action": "find", "find": "no such\0"})), "dataset")[1:] == newest[:200]
    )
    run = operator.post(NEW, chosen | {"action": "draft", "dataset": newest[-2]})
    assert run.status_code == 302
    assert Run.objects.get().dataset == rows[1]
    (other,) = dataset_copies(maker.dataset, 1, project=Project.objects.get(slug="theirs"))
    assert operator.post(NEW, chosen | {"action": "draft", "dataset": str(other.pk)}).status_code == 422


# ---------------------------------------------------------------- ways in


def test_a_new_form_starts_from_what_is_there(operator: Client, chosen: dict[str, str]) -> None:
    page = html(operator.get(NEW))
    assert [selected(page, name) for name in ("base_model", "dataset")] == [chosen["base_model"], chosen["dataset"]]
    assert value(page, "eval.holdout") == "4", "a fifth of 20"
    assert value(page, "sampling.group_size") == "8"
    assert "error-text" not in page


def test_a_preset_fills_the_form_whatever_stood_there(operator: Client, chosen: dict[str, str]) -> None:
    data = chosen | {
        "preset": "dapo",
        "variant": "group/none/0",
        "optim.steps": "7",
        "algorithm.aggregation": "constant",
        "algorithm.aggregation_constant": "99",
        "eval.margin": "0.2",
        "seed": "5",
        "action": "preset",
    }
    page = html(operator.post(NEW, data, headers=HTMX))
    assert "<html" not in page
    sent = as_browser(page)
    expected = {
        "sampling.group_size": "16",
        "algorithm.clip_high": "0.28",
        "sampling.max_completion_tokens": "20480",
        "variant": "group/group_std/0",
        "algorithm.aggregation_constant": "",
        "optim.steps": "100",  # what the preset leaves open is the default again
        "eval.margin": "0.2",  # what is no matter of a preset stays
        "seed": "5",
    }
    assert {name: sent[name] for name in expected} == expected
    assert html(operator.post(NEW, data)).startswith("<!doctype"), "without htmx it is a page"


def test_a_preset_takes_along_what_it_set_when_it_goes(maker: Maker, chosen: dict[str, str]) -> None:
    """The demo evaluates at temperature 1, a field outside sampling, algorithm and optimiser."""
    form = checked(maker, chosen)
    for preset, temperature in (("demo", "1"), ("", "0")):
        form.fill_preset(preset)
        assert form.texts["eval.temperature"] == temperature


def test_differences_from_the_preset_are_named(maker: Maker, chosen: dict[str, str]) -> None:
    form = checked(maker, chosen)
    form.fill_preset("dapo")
    assert not any(field.differs for field in fields_shown(form).values())
    form.texts |= {"sampling.group_size": "8", "sampling.max_completion_tokens": "8192", "optim.lr": "0.000001"}
    shown = fields_shown(form)
    differing = {path: field.differs for path, field in shown.items() if field.differs}
    assert differing == {"sampling.group_size": "16", "sampling.max_completion_tokens": "20480"}, "1e-6 is 0.000001"
    [group] = [group for group in groups_shown(form, shown) if group.differences]
    assert group.id == "sampling"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_the_config_that_the_command_makes(maker: Maker, chosen: dict[str, str], name: str) -> None:
    form = RunForm.posted(maker.project, chosen)
    form.fill_preset(name)
    config = form.check()
    assert config is not None
    assert config.preset == name
    assert diff(config) == []


def test_a_clone_is_the_same_run_again(operator: Client, maker: Maker) -> None:
    run = maker.run(
        "first & best",
        preset="dr_grpo",
        data={"template": "\nQ: {prompt}\nA:", "limit": 15},
        algorithm={"std_ddof": 1, "kl": {"coef": 1e-5}},
        engine={"threads": 2},
        eval={"holdout": 3, "after": False},
        seed=4294967295,
    )
    Run.objects.filter(pk=run.pk).update(priority=10, node_label="a100")
    page = html(operator.get(NEW, {"clone": run.pk}))
    operator.post(NEW, as_browser(page) | {"action": "draft"})
    again = Run.objects.exclude(pk=run.pk).get()
    assert (again.config_digest, again.verifier_version) == (run.config_digest, run.verifier_version)
    assert (again.cloned_from, again.priority, again.node_label) == (run, 10, "a100")
    assert f'<a href="/p/ours/runs/{run.pk}/">first &amp; best</a>' in page_of(operator, again)


def test_only_runs_of_this_project_can_be_cloned(client_for: ClientFor, stranger: Client, maker: Maker) -> None:
    assert stranger.get("/p/theirs/runs/new/", {"clone": maker.run().pk}).status_code == 404
    for no_run in ("x", "9" * 18, "9" * 5000):
        assert client_for(maker.actor).get(NEW, {"clone": no_run}).status_code == 404


# ---------------------------------------------------------------- idle settings


@pytest.mark.parametrize(("sent", "expected"), cases("runs/idle", "sent", "states"))
def test_idle_settings_are_folded(
    maker: Maker, chosen: dict[str, str], sent: dict[str, str], expected: list[str]
) -> None:
    """The first screen shows what it has, and marks it. Devices of vLLM need a server, rollout_tokens the local one."""
    of_the_loss = ("algorithm.sapo.tau_positive", "algorithm.critic.lr", "algorithm.clip_low")
    engine = ("vllm.place", "deepspeed.zero_stage", "vllm.devices", "rollout_tokens")
    form = checked(maker, chosen | sent)
    assert states(form, *of_the_loss, *(f"engine.{name}" for name in engine)) == expected
    groups = {group.id: group for group in groups_shown(form, fields_shown(form))}
    assert groups["critic"].empty is (expected[1] == "idle")
    assert groups["sampling"].away == ""


def test_a_hidden_setting_is_kept_and_its_fault_shown(operator: Client, maker: Maker, chosen: dict[str, str]) -> None:
    """Typed for SAPO, kept while the loss is another."""
    page = html(operator.post(NEW, chosen | {"algorithm.sapo.tau_negative": "1.2", "action": "check"}))
    form = checked(maker, as_browser(page))
    assert states(form, "algorithm.sapo.tau_negative", "algorithm.sapo.tau_positive") == ["unused", "idle"]
    assert form.config is not None
    assert form.config.algorithm.sapo.tau_negative == 1.2
    faulty = checked(maker, chosen | {"algorithm.sapo.tau_positive": "-1"})
    assert states(faulty, "algorithm.sapo.tau_positive") == ["unused"]
    assert set(faulty.problems) == {"algorithm.sapo.tau_positive"}
