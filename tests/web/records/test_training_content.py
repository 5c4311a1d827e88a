"""The draft of the public summary of training content: the template's order, nothing without a source or a reason."""

import re
import zipfile
from io import BytesIO

import pytest
from django.test import Client

from cohort.records.cards.data_files import SHEETS, sheet
from cohort.records.cards.training_content import Summary, size_range, summary_html, summary_json, training_content
from cohort.records.fields import field_facts
from cohort.records.schema_types import AUDIENCES
from tests.factories import sealed_run
from tests.factories.documents import entry, reading
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import content_of

QUESTIONS = {
    "1.1": 2, "1.2": 3, "1.3": 11, "2.1": 5, "2.2.1": 2, "2.2.2": 5, "2.3": 9, "2.4": 5, "2.5": 5, "2.6": 3, "3.1": 3,
    "3.2": 1, "3.3": 3,
}  # fmt: skip
"""Part of the template → its questions, comments among them; of 1.3 one for each modality but text, which has two, and
of 3.3, which asks for anything else, what the record holds."""


@pytest.mark.parametrize("audience", AUDIENCES)
def test_every_field_has_a_source_or_a_reason(audience: str) -> None:
    made = reading(audience)
    summary = Summary.model_validate_json(summary_json(made))
    assert summary == training_content(made)
    assert {section.number: len(section.fields) for section in summary.sections} == QUESTIONS
    assert [section.number for section in summary.sections] == sorted(QUESTIONS)
    for field in (field for section in summary.sections for field in section.fields):
        for path in field.sources:
            assert field_facts(path).path == path
        match field.status:
            case "filled":
                assert field.source, field.heading
                assert re.fullmatch(r"((measured|estimated|config|stated by [^,]+)(, )?)+", field.source), field.heading
            case "to be stated":
                assert field.text.startswith("to be stated by a person: ")
                assert not field.sources
            case "withheld" | "not applicable":
                assert len(field.text) > 15, field.heading
    assert summary.read == "2026-11-28"
    assert "53(1)(d)" in summary.template


def test_what_the_model_sampled_is_synthetic_data_and_nothing_was_crawled() -> None:
    sections = {section.number: section.fields for section in training_content(reading()).sections}
    assert sections["2.5"][0].text.startswith("yes: ")
    assert {field.status for field in sections["2.3"][:-1]} == {"not applicable"}
    assert [field.status for field in sections["2.4"]].count("to be stated") == 4


def test_a_set_of_the_hub_is_named_and_a_file_is_asked_about() -> None:
    value = {"path": "org/sums", "hub": {"revision": "a" * 40, "split": "train", "config": None}, "problems": 9}
    made = training_content(reading(data__prompts=entry("nine problems", value)))
    public = next(section for section in made.sections if section.number == "2.1").fields[0]
    assert public.text == f"yes: org/sums on the Hugging Face Hub, at commit {'a' * 40}, split train"
    file = entry("not stated", None, source="not stated")
    made = training_content(reading(data__prompts=entry("a file", {"sha256": "b" * 64}), data__provenance=file))
    listed = next(section for section in made.sections if section.number == "2.1").fields[2]
    assert listed.status == "to be stated"
    assert "b" * 64 in listed.text
    assert (listed.question, listed.anchor) == ("data.provenance", "data-provenance")


def test_the_sizes_are_the_templates_ranges() -> None:
    assert [size_range(tokens) for tokens in (900, 1e9, 9.9e12, 1e13)] == [
        "less than 1 billion tokens",
        "1 billion to 10 trillion tokens",
        "1 billion to 10 trillion tokens",
        "more than 10 trillion tokens",
    ]


def test_text_of_people_is_inert() -> None:
    hostile = entry("<script>alert(1)</script>\u202e", None, source="stated by <b>eve</b>")
    page = summary_html(reading(data__provenance=hostile)).decode()
    assert "<script" not in page
    assert "<b>" not in page
    assert "\u202e" not in page


@pytest.mark.parametrize("path", SHEETS)
def test_each_sheet_names_its_source_and_its_day(path: str) -> None:
    text = sheet(reading(), path).decode()
    assert re.search(r"Source: .{20,}; as read on 20\d\d-\d\d-\d\d in public copies", text)


def test_the_dates_of_the_eu_are_those_after_the_omnibus() -> None:
    text = sheet(reading(), "sheets/eu-documentation-form.md").decode().replace("\\", "")
    for words in ("2026/1744", "27 July 2026", "2 December 2027", "2 August 2028", "2 August 2026", "2 August 2027"):
        assert words in text


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_the_page_and_every_card_have_it(world: World, viewer: Client) -> None:
    record = sealed_run.sealed(world.launch())
    whole = f"/p/{record.run.project.slug}/runs/{record.run_id}/record/"
    address = f"{whole}{record.end}/{record.version}/training-content"
    page = html(viewer.get(f"{address}/"))
    assert "Private datasets obtained from other third parties" in page
    assert "to be stated by a person" in page
    offered = viewer.get(f"{address}.json")
    assert offered["Content-Type"] == "application/json"
    summary = Summary.model_validate_json(offered.content)
    assert (summary.audience, summary.seal, summary.draft) == ("public", record.seal, True)
    assert f'href="{address}/"' in html(viewer.get(whole))
    for card in record.cards.all():
        with zipfile.ZipFile(BytesIO(content_of(card))) as zipped:
            held = zipped.read("sheets/training-content-summary.json")
            assert Summary.model_validate_json(held).audience == card.audience
            assert b"Summary of training content" in zipped.read("sheets/training-content-summary.html")
            if card.audience == "public":
                assert held == offered.content
