"""The record in the forms that others read: each is checked by the reader it is meant for."""

import json
import re
from collections.abc import Callable
from io import BytesIO

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard
from pypdf import PdfReader

from cohort.governance.cards import bom, charts, html, markdown, pdf, readme, sheets
from cohort.governance.cards.asked import EU_FORM, NIST_RMF
from cohort.governance.cards.reading import Reading, Series
from cohort.governance.fields import FIELDS
from cohort.governance.parts import AUDIENCES
from tests.browser import chromium
from tests.web.governance.made_reading import BASE_DIGEST, DIGEST, HOSTILE, comparison, entry, reading

COPIES: dict[str, Callable[[Reading], bytes]] = {
    "CARD.md": markdown.card_markdown,
    "card.html": html.card_html,
    "card.pdf": pdf.card_pdf,
    "bom.cdx.json": bom.bom,
    "eu": sheets.eu_sheet,
    "nist": sheets.nist_sheet,
    "README.txt": lambda read: readme.readme(read, ["record.json", "evals/before.jsonl"]),
}


def pdf_text(content: bytes) -> str:
    return "\n".join(page.extract_text() for page in PdfReader(BytesIO(content)).pages)


@pytest.mark.parametrize("audience", AUDIENCES)
def test_model_card_loads_in_the_hub_library(audience: str) -> None:
    card = ModelCard(markdown.card_markdown(reading(audience)).decode())
    assert card.data.base_model == "org/tiny"
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["grpo", "reinforcement-learning", "cohort"]
    (result,) = card.data.eval_results or []  # `format` was not measured after training
    assert (result.task_type, result.dataset_type, result.metric_type) == ("text-generation", "heldout", "accuracy")
    assert result.metric_value == 0.8
    assert result.metric_config == "95 % interval 71.1 % to 86.7 %, 100 items"
    assert result.metric_args == {"interval_low": 0.711, "interval_high": 0.867, "items": 100}
    assert "## Behaviour before and after" in card.text


@pytest.mark.parametrize(
    ("changed", "cell"),
    [
        ({}, "better (margin 5)"),
        ({"margin": 0.125}, "better (margin 12.5)"),
        ({"verdict": "undecided at margin 5", "non_inferiority": "undecided"}, "undecided at margin 5"),
        ({"verdict": "higher", "higher_is": "neutral", "non_inferiority": None}, "higher"),
    ],
)
def test_the_margin_stands_beside_the_verdict_in_every_copy(changed: dict[str, object], cell: str) -> None:
    made = reading(behaviour__performance=entry("x", [comparison() | changed]))
    assert f"| {markdown.escape(cell)} |\n" in markdown.card_markdown(made).decode()
    assert f"<td>{cell}</td></tr>" in html.card_html(made).decode()
    assert cell in pdf_text(pdf.card_pdf(made)).replace("\u00a0", " ")


def test_model_card_with_hostile_text_keeps_its_head_and_has_no_markup() -> None:
    made = reading(text=f"a\n---\n{HOSTILE}", behaviour__performance=entry("x", [comparison("a\n---\n: [b]")]))
    text = markdown.card_markdown(made).decode()
    card = ModelCard(text)
    assert card.data.eval_results[0].dataset_name == "a --- : b"
    assert yaml.safe_load(text.split("---\n")[1])["library_name"] == "transformers"
    assert "<script" not in text.replace("\\<", "")
    assert "](javascript" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    rows = [line for line in card.text.splitlines() if line.startswith("| How it ended")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [4]


def test_base_model_on_a_disk_is_no_model_of_the_hub() -> None:
    base = entry("tiny", {"source": "models/private/tiny", "revision": None, "weights": {}})
    assert ModelCard(markdown.card_markdown(reading(subject__base_model=base)).decode()).data.base_model is None


@pytest.mark.parametrize("audience", AUDIENCES)
@pytest.mark.parametrize("text", ["said", HOSTILE.replace("\ud800", "")])
def test_bom_passes_the_strict_validator(audience: str, text: str) -> None:
    content = bom.bom(reading(audience, text=text)).decode()
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(content) is None


def test_bom_of_a_record_that_says_nothing_passes_too() -> None:
    nothing = {f"{section}__{name}": entry("not stated", source="not stated")
               for section, fields in FIELDS.items() for name in fields}  # fmt: skip
    content = bom.bom(reading(**nothing)).decode()
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(content) is None
    assert "pedigree" not in json.loads(content)["metadata"]["component"]


def test_bom_says_what_the_record_says() -> None:
    made = reading()
    found = json.loads(bom.bom(made))
    model = found["metadata"]["component"]
    assert model["hashes"] == [{"alg": "SHA-256", "content": DIGEST}]
    (base,) = model["pedigree"]["ancestors"]
    assert (base["name"], base["version"], base["hashes"][0]["content"]) == ("org/tiny", "abc", BASE_DIGEST)
    metrics = {
        (one["type"], one.get("slice")): one for one in model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    }
    assert metrics["heldout: score after training", None] == {
        "type": "heldout: score after training",
        "value": "0.8",
        "confidenceInterval": {"lowerBound": "0.711", "upperBound": "0.867"},
    }
    assert metrics["heldout: after minus before", None]["value"] == "0.5"
    assert ("heldout: score after training", "de") in metrics
    assert ("format: score after training", None) not in metrics
    properties = {one["name"]: one["value"] for one in model["modelCard"]["properties"]}
    assert properties["cohort:method.group_size"] == "said"
    assert properties["cohort:method.group_size:source"] == "measured"
    assert model["modelCard"]["modelParameters"]["approach"] == {"type": "reinforcement-learning"}
    assert {"ref": "training-prompts"} in model["modelCard"]["modelParameters"]["datasets"]
    assert {one["name"]: one["value"] for one in found["metadata"]["properties"]}["cohort:seal"] == made.seal


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_the_same_for_the_same_record(name: str) -> None:
    made = reading()
    assert COPIES[name](made) == COPIES[name](made)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_shows_nothing_that_its_audience_does_not_get(name: str) -> None:
    secret = "kept-for-authorities-only"
    given = {"method__rationale": entry(secret, {"a": secret}, audience="authority")}
    assert secret.encode() not in COPIES[name](reading("downstream", **given))
    if name in ("CARD.md", "card.html"):
        assert secret.encode() in COPIES[name](reading("authority", **given)).replace(b"\\", b"")


@pytest.mark.parametrize("name", COPIES)
def test_no_copy_claims_to_meet_a_law(name: str) -> None:
    assert not re.search(rb"complian|certif|conform", COPIES[name](reading()), re.IGNORECASE)


def test_page_refers_to_nothing_outside_and_runs_nothing() -> None:
    page = html.card_html(reading(text=HOSTILE)).decode()
    assert "<script" not in page
    assert page.count("<style>") == 1
    assert not re.search(r"<[a-z][^>]*\s(src|href|on\w+|action|data)\s*=", page)
    assert not re.search(r"url\(|@import|<(link|iframe|object|embed|form|base)\b", page)
    outside = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert outside == {"http://www.w3.org/2000/svg"}  # the name of SVG, which nothing loads
    assert page.count("<svg") == 3
    assert "@media print" in page
    assert "prefers-color-scheme: dark" in page


def test_page_opens_from_a_disk_without_asking_for_anything(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("card") / "card.html"
    file.write_bytes(html.card_html(reading(text=HOSTILE)))
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 360, "height": 800})
        asked: list[str] = []
        faults: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: faults.append(message.text))
        page.goto(file.as_uri())
        assert asked == [file.as_uri()]
        assert faults == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_public_page_has_no_chart_of_steps() -> None:
    assert html.card_html(reading("public")).count(b"<svg") == 1


def test_chart_is_drawn_from_the_numbers() -> None:
    series = Series(steps=[1, 2, 3], values={"reward": [0.0, None, 1.0], "frac_reward_zero_std": [None, 0.5, None]})
    made = Reading(reading().document, series)
    drawn = {chart.title: chart for chart in charts.charts(made)}
    assert list(drawn) == [
        "Score before and after training, with 95 % intervals",
        "Mean reward of training completions",
    ]
    chart = drawn["Mean reward of training completions"]
    # room of 6 % above and below 0…1 on 146 units of height from 26 on: 26 + 146 · 0.06 / 1.12, and its mirror
    assert 'points="52.0,164.2 570.0,33.8"' in chart.svg
    assert chart.rows == (("1", "0"), ("3", "1"))


def test_pdf_carries_the_seal_in_its_text() -> None:
    made = reading()
    content = pdf.card_pdf(made)
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    text = pdf_text(content)
    assert made.seal in text
    assert made.short_digest in text
    assert "python verify.pyz CARD.zip" in text
    assert made.seal not in pdf_text(pdf.card_pdf(reading()))  # another salt, another seal: the text is really read


@pytest.mark.parametrize(
    "text", [HOSTILE, "".join(map(chr, range(0xD7FF))), "a" * 100_000, "\u0301" * 500, "क्षि" * 300]
)
def test_pdf_takes_any_text(text: str) -> None:
    made = reading()
    sections = {**made.document["sections"], "reward": {**made.document["sections"]["reward"], "domain": entry(text)}}
    content = pdf.card_pdf(Reading({**made.document, "sections": sections}))
    assert content.startswith(b"%PDF-")


def test_sheets_name_fields_of_the_record() -> None:
    known = {f"{section}.{name}" for section, fields in FIELDS.items() for name in fields}
    assert {path for one in (*EU_FORM, *NIST_RMF) for path in one.fields} <= known


def test_sheet_says_where_or_that_nothing_is_stated() -> None:
    sheet = sheets.eu_sheet(reading("public", text="here it stands")).decode()
    assert "It quotes no law and no standard" in sheet
    rows = [line for line in sheet.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(EU_FORM)
    assert "**Reward domains** (`reward.domain`): here it stands (measured)" in sheet
    assert "(`subject.run`): in the card for authority" in sheet
    assert (
        "| Distribution: channels and licence | not stated (the record of a training run has no such field) |" in sheet
    )
    nist = sheets.nist_sheet(reading(handling__monitoring=entry("not stated", source="not stated"))).decode()
    assert "(`handling.monitoring`): not stated" in nist


def test_readme_lists_only_what_is_there() -> None:
    found = readme.readme(reading("public"), ["record.json", "evals/before.jsonl", "verify.pyz"]).decode()
    assert "evals/" in found
    assert "traces/" not in found
    assert "events.jsonl" not in found
    assert reading("public").short_digest.count(" ") == 3
