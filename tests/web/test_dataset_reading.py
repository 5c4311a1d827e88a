"""Files as they are published, in the browser's form: what is detected, shown and chosen, and how a run reads them."""

import io
import json
from typing import Any

import pyarrow
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pyarrow import parquet

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import dataset_problems, input_path
from cohort.catalog.services import dataset_create
from cohort.launch.configs import run_config
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.specs.fields import DataColumns

NEW = "/p/ours/datasets/new/"
TURNS = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Add 2 and 3."}]
VERL = {"data_source": "own", "prompt": TURNS, "reward_model": {"ground_truth": "5", "style": "rule"}}
ODD = {"q": "Add 2 and 3.", "gold": {"value": ["5", "five"]}, "note": "kept"}
PAIRS = ("q", "prompt"), ("gold.value", "answer")


def parquet_of(*rows: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), content)
    return content.getvalue()


def json_of(*rows: dict[str, Any]) -> bytes:
    return json.dumps(rows).encode()


def sent(client: Client, content: bytes, *, htmx: bool = True, **more: str) -> Any:
    headers = {"hx-request": "true"} if htmx else {}
    given = {"name": "set", "format": "auto", "file": SimpleUploadedFile("data.bin", content), **more}
    return client.post(NEW, given, headers=headers)


def test_a_check_shows_layout_rows_columns_and_problems_and_stores_nothing(operator: Client) -> None:
    response = sent(operator, parquet_of(VERL, VERL), action="check", name="")
    page = response.content.decode()
    assert response.status_code == 200
    assert "<!doctype html>" not in page
    checked = response.context["checked"]
    assert (checked.title, checked.dataset.problems, checked.fault) == ("Parquet, verl", 2, "")
    assert [(name, role) for name, role, _ in checked.columns] == [
        ("data_source", ""),
        ("prompt", "prompt"),
        ("reward_model", "answer"),
    ]
    assert "Be short." in page
    assert '<option value="reward_model.ground_truth">' in page
    assert not PromptDataset.objects.exists()


def test_columns_that_no_layout_knows_are_chosen_beneath_the_rows(operator: Client, ours: Project) -> None:
    first = sent(operator, json_of(ODD), action="check")
    assert "is of no known layout; found q, gold, note" in first.context["checked"].fault
    assert '<option value="gold.value">' in first.content.decode()
    chosen = {f"column-{role}": path for path, role in PAIRS}
    again = sent(operator, json_of(ODD), action="check", **chosen)
    assert again.context["checked"].dataset.preview == [
        {"id": "row-1", "prompt": "Add 2 and 3.", "answer": "5", "other_answers": ["five"]}
    ]
    assert '<option value="gold.value" selected>' in again.content.decode()
    stored = sent(operator, json_of(ODD), **chosen)
    dataset = PromptDataset.objects.get(project=ours)
    assert stored.headers["HX-Redirect"] == f"/p/ours/datasets/{dataset.pk}/"
    assert (dataset.format, dataset.container) == ("plain", "json")
    assert dataset.mapping == {"prompt": "q", "answer": "gold.value"}
    assert dataset.columns == {"answer": 1, "gold": 1, "note": 1}
    page = operator.get(stored.headers["HX-Redirect"]).content.decode()
    assert all(part in page for part in ("JSON list", "answer from", "gold.value", "five"))


def test_a_fault_keeps_the_page_and_names_the_row(operator: Client) -> None:
    rows = [{"prompt": "p", "answer": "1"}] * 16 + [{"prompt": "p"}]
    for action in ({"action": "check"}, {}):
        response = sent(operator, json_of(*rows), **action)
        assert response.status_code == (200 if action else 422)
        assert "data.bin, row 17: has no field &#x27;answer&#x27;" in response.content.decode()
        assert len(response.context["checked"].rows) == 3
    assert sent(operator, json_of(*rows), htmx=False).content.decode().startswith("<!doctype html>")
    assert not PromptDataset.objects.exists()


@pytest.mark.parametrize(
    ("given", "faults"),
    [({}, set()), ({"column-prompt": "x" * 301}, {"__all__"}), ({"column-id": "\x00"}, {"__all__"})],
)
def test_a_check_without_a_file_is_quiet_and_a_column_is_checked(
    operator: Client, given: dict[str, str], faults: set[str]
) -> None:
    response = operator.post(NEW, {"action": "check", "format": "auto", **given}, headers={"hx-request": "true"})
    assert faults == set(response.context["form"].errors) - {"file"}
    assert ("Choose a file" in response.content.decode()) is False or bool(faults)


def test_none_is_chosen_for_ids_that_repeat(operator: Client) -> None:
    rows = json_of(*[{"id": "a", "prompt": "p", "answer": "1"}] * 2)
    assert "data.columns.id" in sent(operator, rows, action="check").context["checked"].fault
    sent(operator, rows, **{"column-id": "-"})
    assert [problem.id for problem in dataset_problems(PromptDataset.objects.get())] == ["row-1", "row-2"]


def test_a_run_reads_the_file_as_it_was_chosen(
    ours: Project, alice: User, base_model: BaseModel, verifier_version: VerifierVersion
) -> None:
    def create(name: str, content: bytes, **more: Any) -> PromptDataset:
        return dataset_create(project=ours, actor=alice, name=name, chunks=[content], **more)

    train = create("odd", json_of(ODD), columns=DataColumns(prompt="q", answer="gold.value"))
    heldout = create("verl", parquet_of(VERL))
    given = {"name": "run", "base_model": base_model, "verifier_version": verifier_version, "settings": {}}
    config = run_config(**given, dataset=train, eval_dataset=heldout)
    assert config.data.path == input_path(train) == f"inputs/{train.sha256}.jsonl"
    assert (config.data.format, config.data.columns.answer) == ("plain", "gold.value")
    assert (config.eval.format, config.eval.columns) == ("verl", DataColumns())
    assert RunConfig.from_dict(config.to_dict(), source="x") == config
    with pytest.raises(ConfigError, match=r"data\.columns: is decided by the dataset"):
        run_config(**{**given, "settings": {"data": {"columns": {"id": "x"}}}}, dataset=train, eval_dataset=None)
    bare = create("bare", json_of({"prompt": "Write a line."}))
    with pytest.raises(ConfigError, match="has no field 'answer', which the reward's component"):
        run_config(**given, dataset=bare, eval_dataset=heldout)
