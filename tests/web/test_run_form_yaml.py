"""YAML in the run form: a whole config that fills it in, and fields whose text is YAML."""

from typing import Any

import pytest
import yaml
from django.test import Client
from django.utils.html import escape

from cohort.accounts.models import Project
from cohort.runs.models import Run
from cohort.web.launch.form import form_from_yaml
from grpo_core.config.run import RunConfig
from tests.factories.runs import Maker
from tests.tables import cases
from tests.web.form_page import as_browser
from tests.web.pages import html

NEW = "/p/ours/runs/new/"


def test_copied_yaml_fills_the_form_again(operator: Client, chosen: dict[str, str]) -> None:
    data = chosen | {"preset": "dapo", "variant": "group/batch_std/0", "algorithm.kl.coef": "0.001", "seed": "3"}
    plain = operator.post(NEW, data | {"action": "yaml"}).content.decode()
    config = RunConfig.from_text(plain)
    assert (config.algorithm.scale, config.algorithm.kl.coef, config.seed) == ("batch_std", 0.001, 3)
    page = html(operator.post(NEW, {"action": "import", "yaml": plain}))
    operator.post(NEW, as_browser(page) | {"action": "draft"})
    assert Run.objects.get().config_digest == config.digest()


@pytest.mark.parametrize(("change", "text", "path"), cases("runs/yaml_faults", "change", "text", "path"))
def test_yaml_with_a_fault_names_the_path_and_stays(
    operator: Client, maker: Maker, change: dict[str, Any] | None, text: str | None, path: str
) -> None:
    sent = yaml.safe_dump({**maker.run().config, **change}) if change else text
    response = operator.post(NEW, {"action": "import", "yaml": sent})
    assert response.status_code == 422
    assert [fault for fault in response.context["yaml_faults"] if fault.startswith(path)]
    assert f">\n{escape(sent)}</textarea>" in html(response)


def test_yaml_of_unknown_rows_names_the_fields_to_choose(ours: Project) -> None:
    text = RunConfig.from_dict(
        {
            "model": {"path": "elsewhere", "revision": "abc"},
            "data": {"path": "train.jsonl"},
            "reward": {"components": [{"name": "right", "kind": "numeric"}]},
            "eval": {"path": "test.jsonl"},
            "sampling": {"group_size": 32},
        }
    ).to_yaml()
    form = form_from_yaml(ours, text)
    missing = {"base_model", "dataset", "eval_dataset", "verifier_version"}
    assert set(form.problems) == missing | {"eval.holdout"}, "with nothing to evaluate on"
    assert form.texts["sampling.group_size"] == "32", "what could be read is filled in"


@pytest.mark.parametrize("field", ["sampling.stop", "data.chat_template_kwargs"])
@pytest.mark.parametrize("text", ["[a", "a: 1: 2", "\x00", "&a [*a]", "!!python/name:os.system"])
@pytest.mark.parametrize("action", ["check", "launch", "draft"])
def test_what_is_no_yaml_is_an_error_of_its_field(
    operator: Client, chosen: dict[str, str], field: str, text: str, action: str
) -> None:
    page = html(operator.post(NEW, chosen | {field: text, "action": action}))
    said = page.partition(f'id="said-f-{field.replace(".", "-").replace("_", "-")}"')[2].partition('class="help"')[0]
    assert "is not YAML" in said
    assert not Run.objects.exists()
