"""Records of fine-tuning, distillation, reward models and sampling: sealed, checked, and forged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.catalog.models import DatasetContent
from cohort.evidence.canonical import canonical
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import verify_card
from cohort.records.cards.pack import Pack
from cohort.records.fields import STAGE_FIELDS
from cohort.records.models import Record
from cohort.records.schema import Document
from cohort.records.services import record_seal
from cohort.runs.models import Run
from tests.factories import sealed_run, stage_runs
from tests.web.records.conftest import World
from tests.web.records.records import accepted, files_of, platform_keys, stripped

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
SHORT = {"optim": {"steps": 3, "batch_size": 8}}


def rows_of(world: World) -> dict[str, Any]:
    return {"project": world.ours, "actor": world.alice, "base_model": world.base_model}


def tuned(world: World, **settings: Any) -> Run:
    data = stage_runs.dataset_of(world.ours, "worked", DatasetContent.CONVERSATIONS, stage_runs.CONVERSATIONS)
    run = stage_runs.launch(
        "sft", **rows_of(world), dataset=data, settings={**SHORT, "data": {"holdout": 4}, **settings}
    )
    return sealed_run.attempted(run, stage_runs.fine_tuned(run))


def sampled(world: World) -> Run:
    run = stage_runs.launch(
        "sample",
        **rows_of(world),
        dataset=world.dataset,
        verifier_version=world.verifier_version,
        settings={"sampling": {"group_size": 4, "prompts_per_step": 2}},
    )
    ended = sealed_run.attempted(run, stage_runs.sampled(run))
    rows = [{"prompt": f"what is {a} + 7?", "completion": str(a + 7)} for a in range(14)]
    stage_runs.dataset_of(world.ours, "kept", DatasetContent.CONVERSATIONS, rows, sampled_by=ended)
    return ended


def ranked(world: World) -> Run:
    data = stage_runs.dataset_of(world.ours, "pairs", DatasetContent.PREFERENCES, stage_runs.PAIRS)
    run = stage_runs.launch("reward_model", **rows_of(world), dataset=data, settings={**SHORT, "data": {"holdout": 4}})
    return sealed_run.attempted(run, stage_runs.ranked(run))


def distilled(world: World) -> Run:
    teacher = record_seal(run=sampled(world)).run
    data = teacher.sampled_datasets.get()
    run = stage_runs.launch("distill", **rows_of(world), dataset=data, settings=SHORT)
    return sealed_run.attempted(run, stage_runs.fine_tuned(run))


MADE: dict[str, Callable[[World], Run]] = {
    "sft": tuned,
    "distill": distilled,
    "reward_model": ranked,
    "sample": sampled,
}


@pytest.mark.parametrize("kind", MADE)
def test_a_run_of_every_kind_ends_in_a_record_that_verifies(
    world: World, kind: str, tmp_path: Path, golden: Callable[[str, Any], None]
) -> None:
    record = record_seal(run=MADE[kind](world))
    document = json.loads(record.document)
    assert list(document["sections"]["stage"]) == sorted(STAGE_FIELDS[kind])
    for audience in AUDIENCES:
        assert accepted(record.card(audience), tmp_path)
    golden(f"records/stage_{kind}.json", texts_of(record))


def texts_of(record: Record) -> dict[str, Any]:
    """Every field as people read it, without what varies."""
    sections = Document.model_validate_json(record.document).sections
    return {
        f"{section}.{name}": stripped([field.text, field.note, field.source])  # type: ignore[union-attr]
        for section, fields in sections.items()
        for name, field in fields.items()
    }


def forged(record: Record, folder: Path, change: Callable[[dict[str, Any]], None]) -> dict[str, str]:
    """Faults that the check names in the public card whose record was changed."""
    content = files_of(record.card("public"))
    document = json.loads(content["record.json"])
    change(document["sections"])
    content["record.json"] = canonical(document)
    with Pack(folder / "pack") as pack:
        path = pack.zip("forged.zip", [pack.whole(name, body) for name, body in content.items()])
    report = verify_card(path, platform_keys())
    assert report.verdict == "changed"
    return {check.name: check.detail for check in report.checks if check.status == "failed"}


def better_loss(sections: dict[str, Any]) -> None:
    sections["stage"]["heldout_loss"]["value"]["after"] = 0.1


def no_stage(sections: dict[str, Any]) -> None:
    """It would pass for a GRPO run."""
    del sections["stage"]


def a_reward(sections: dict[str, Any]) -> None:
    sections["reward"]["source"] |= {"text": "r1 + exact", "source": "config", "evidence": "declared"}


@pytest.mark.parametrize("change", [better_loss, no_stage, a_reward])
def test_a_forged_field_of_a_stage_is_refused(
    world: World, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    record = record_seal(run=tuned(world))
    assert "record root" in forged(record, tmp_path, change)


def test_a_stage_has_the_fields_of_its_kind_and_no_others(world: World) -> None:
    whole = json.loads(record_seal(run=tuned(world)).document)
    fields = whole["sections"]["stage"]
    for changed in (
        {**fields, "teacher": fields["packing"]},
        {name: field for name, field in fields.items() if name != "epochs"},
        {name: field for name, field in fields.items() if name != "kind"},
    ):
        with pytest.raises(ValueError, match=r"stage\."):
            Document.model_validate({**whole, "sections": {**whole["sections"], "stage": changed}})
