"""What a run form starts from does not mix: a preset leaves nothing of the one before and can be undone; a clone names
what it has otherwise than its parent, in the form and on the run's page; YAML may be a file."""

import json

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.catalog.services import verifier_version_create
from cohort.runs.models import Run
from cohort.web.launch.changes import choose_preset, preset_changes, undo_preset
from cohort.web.launch.run_form import RunForm
from grpo_core.config.presets import PRESETS
from tests.factories.runs import Maker
from tests.web.form_page import as_browser, selected, value
from tests.web.pages import html

NEW = "/p/ours/runs/new/"
HTMX = {"HX-Request": "true"}
HELD = ("undo", "preset_before")


def test_any_sequence_of_presets_ends_as_the_last_alone(maker: Maker, chosen: dict[str, str]) -> None:
    """Also with settings typed in between that belong to presets, such as those of GDPO or a signal's gate."""
    opened = RunForm.posted(maker.project, chosen)

    def after(names: list[str], typed: dict[str, str]) -> dict[str, str]:
        form = RunForm(opened.project, opened.choices, dict(opened.texts))
        for name in names:
            form.texts |= {**typed, "preset": name}
            choose_preset(form)
        return {name: text for name, text in form.texts.items() if name not in HELD}

    typed = st.dictionaries(
        st.sampled_from(["algorithm.signal_gate", "algorithm.multi_objective_aggregation", "algorithm.kl.coef"]),
        st.sampled_from(["reward", "normalize_then_sum", "0.5"]),
    )

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(["", *PRESETS]), min_size=1, max_size=5), typed)
    def holds(names: list[str], texts: dict[str, str]) -> None:
        assert after(names, texts) == after(names[-1:], {})

    holds()


def test_a_preset_is_undone_with_one_press(operator: Client, chosen: dict[str, str]) -> None:
    sent = chosen | {"sampling.group_size": "12", "algorithm.kl.coef": "0.3", "preset": "dapo"}
    page = html(operator.post(NEW, sent | {"action": "preset"}, headers=HTMX))
    assert 'id="preset-changes"' in page
    assert '<td class="anywhere">12</td>' in page
    back = html(operator.post(NEW, as_browser(page) | {"action": "undo"}, headers=HTMX))
    assert [value(back, name) for name in ("sampling.group_size", "algorithm.kl.coef")] == ["12", "0.3"]
    assert (selected(back, "preset"), 'id="preset-changes"' in back) == ("", False)
    assert operator.post(NEW, as_browser(back) | {"action": "undo"}).status_code == 422


def test_undo_takes_nothing_but_what_presets_set(maker: Maker, chosen: dict[str, str]) -> None:
    for held in ("[", "[1]", '{"seed": "9", "dataset": "8", "optim.lr": 3}', "[" * 100_000):
        form = RunForm.posted(maker.project, chosen | {"undo": held})
        assert preset_changes(form) == []
        assert not undo_preset(form)
    form = RunForm.posted(maker.project, chosen | {"undo": json.dumps({"optim.lr": "0.5", "seed": "9"})})
    assert undo_preset(form)
    assert (form.texts["optim.lr"], form.texts["seed"]) == ("0.5", "0")


def test_a_clone_names_what_differs_in_the_form_and_on_its_page(operator: Client, maker: Maker) -> None:
    parent = maker.run("parent", seed=1)
    other = verifier_version_create(
        project=maker.project,
        actor=maker.actor,
        name="numeric",
        spec={"components": [{"name": "r", "kind": "numeric"}]},
    )
    sent = as_browser(html(operator.get(NEW, {"clone": parent.pk})))
    assert "None in any setting" in html(operator.post(NEW, sent | {"action": "check"}, headers=HTMX))
    sent |= {"seed": "5", "verifier_version": str(other.pk), "name": "child"}
    rewards = str(maker.verifier_version), str(other)
    rows = [
        f'class="mono">{path}</th><td class="anywhere">{before}</td><td class="anywhere">{after}</td>'
        for path, before, after in (("seed", "1", "5"), ("reward", *rewards))
    ]
    answers = [html(operator.post(NEW, sent | {"action": "check"}, headers=HTMX))]
    assert operator.post(NEW, sent | {"action": "draft"}).status_code == 302
    child = Run.objects.exclude(pk=parent.pk).get()
    answers.append(html(operator.get(f"/p/ours/runs/{child.pk}/config/")))
    for answer in answers:
        assert [row in answer for row in rows] == [True, True]
        assert answer.split("Differences from its parent")[1].split("</table>")[0].count("<tr>") == 3
    assert "Differences from its parent" not in html(operator.get(f"/p/ours/runs/{parent.pk}/config/"))


def test_yaml_may_be_a_file(operator: Client, maker: Maker) -> None:
    run = maker.run("from a file", seed=77)
    file = SimpleUploadedFile("run.yaml", run.parsed_config.to_yaml().encode())
    page = html(operator.post(NEW, {"action": "import", "yaml": "", "file": file}))
    assert (value(page, "seed"), value(page, "name")) == ("77", "from a file")
    assert f'<option value="{run.pk}">from a file' in html(operator.get(NEW))
