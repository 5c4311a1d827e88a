"""The record in the forms that others read: each is checked by the reader it is meant for."""

import json
import re
from collections.abc import Callable
from functools import partial
from io import BytesIO

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard
from pypdf import PdfReader

from cohort.evidence.judgements import Judgement, review_figures
from cohort.records.cards import bom, data_files, issue, markdown, pdf, readme, svg, training_content
from cohort.records.cards.reading import Reading, Series
from cohort.records.fields import COMMON_FIELDS
from cohort.records.schema_types import AUDIENCES
from tests.factories.documents import BASE_DIGEST, DIGEST, HOSTILE, comparison, entry, reading
from tests.web.pages import compact

COPIES: dict[str, Callable[[Reading], bytes]] = {
    "CARD.md": markdown.card_markdown,
    "card.html": issue.card_html,
    "card.pdf": pdf.card_pdf,
    "bom.cdx.json": bom.bom,
    **{path: partial(data_files.sheet, path=path) for path in data_files.SHEETS},
    training_content.HTML_FILE: training_content.summary_html,
    training_content.JSON_FILE: training_content.summary_json,
    "README.txt": lambda read: readme.readme(read, ["record.json", "evals/before.jsonl"]),
}
HARMLESS = HOSTILE.replace("\ud800", "")


def pdf_text(content: bytes) -> str:
    return "\n".join(page.extract_text() for page in PdfReader(BytesIO(content)).pages)


@pytest.mark.parametrize("name", COPIES)
def test_each_copy_is_stable_keeps_what_is_withheld_and_claims_no_law(name: str) -> None:
    made = reading()
    content = COPIES[name](made)
    assert content == COPIES[name](made)
    assert not re.search(rb"complian|certif|conform", content, re.IGNORECASE)
    secret = "kept-for-authorities-only"
    given = {"method__rationale": entry(secret, {"a": secret}, audience="authority")}
    assert secret.encode() not in COPIES[name](reading("downstream", **given))
    if name in ("CARD.md", "card.html"):
        assert secret.encode() in COPIES[name](reading("authority", **given)).replace(b"\\", b"")


@pytest.mark.parametrize("audience", AUDIENCES)
def test_model_card_loads_in_the_hub_library(audience: str) -> None:
    card = ModelCard(markdown.card_markdown(reading(audience)).decode())
    assert (card.data.base_model, card.data.library_name) == ("org/tiny", "transformers")
    assert card.data.tags == ["grpo", "reinforcement-learning", "cohort"]
    (result,) = card.data.eval_results or []  # `format` was not measured after training
    assert (result.task_type, result.dataset_type, result.metric_type) == ("text-generation", "heldout", "accuracy")
    assert result.metric_value == 0.8
    assert result.metric_args == {"interval_low": 0.711, "interval_high": 0.867, "items": 100}
    base = entry("tiny", {"source": "models/private/tiny", "revision": None, "weights": {}})
    on_disk = markdown.card_markdown(reading(audience, subject__base_model=base)).decode()
    assert ModelCard(on_disk).data.base_model is None, "a folder is no model of the hub"


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
    assert f"<td>{cell}</td></tr>" in compact(issue.card_html(made).decode())
    assert cell in pdf_text(pdf.card_pdf(made)).replace("\u00a0", " ")


def test_model_card_with_hostile_text_keeps_its_head_and_has_no_markup() -> None:
    made = reading(text=f"a\n---\n{HARMLESS}", behaviour__performance=entry("x", [comparison("a\n---\n: [b]")]))
    text = markdown.card_markdown(made).decode()
    card = ModelCard(text)
    assert card.data.eval_results[0].dataset_name == "a --- : b"
    assert yaml.safe_load(text.split("---\n")[1])["library_name"] == "transformers"
    assert "<script" not in text.replace("\\<", "")
    for harmful in ("](javascript", "\u202e", "\x1b"):
        assert harmful not in text
    rows = [line for line in card.text.splitlines() if line.startswith("| How it ended")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [4], "a bar in a cell would open another one"


NOTHING = {
    f"{section}__{name}": entry("not stated", source="not stated")
    for section, part in COMMON_FIELDS.items()
    for name in part
}


@pytest.mark.parametrize("audience", AUDIENCES)
def test_bom_passes_the_strict_validator(audience: str) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_7)
    for made in (*(reading(audience, text=text) for text in ("said", HARMLESS)), reading(audience, **NOTHING)):
        assert validator.validate_str(bom.bom(made).decode()) is None


def test_bom_says_what_the_record_says() -> None:
    made = reading()
    found = json.loads(bom.bom(made))
    model = found["metadata"]["component"]
    assert model["hashes"] == [{"alg": "SHA-256", "content": DIGEST}]
    (base,) = model["pedigree"]["ancestors"]
    assert (base["name"], base["version"], base["hashes"][0]["content"]) == ("org/tiny", "abc", BASE_DIGEST)
    card = model["modelCard"]
    metrics = {(row["type"], row.get("slice")): row for row in card["quantitativeAnalysis"]["performanceMetrics"]}
    score = metrics["heldout: score after training", None]
    assert (score["value"], score["confidenceInterval"]) == ("0.8", {"lowerBound": "0.711", "upperBound": "0.867"})
    assert metrics["heldout: after minus before", None]["value"] == "0.5"
    assert ("heldout: score after training", "de") in metrics
    assert ("format: score after training", None) not in metrics
    properties = {row["name"]: row["value"] for row in [*card["properties"], *found["metadata"]["properties"]]}
    wanted = {"method.group_size": "said", "method.group_size:source": "measured", "seal": made.seal}
    assert wanted.items() <= {name.removeprefix("cohort:"): value for name, value in properties.items()}.items()
    assert card["modelParameters"]["approach"] == {"type": "reinforcement-learning"}
    assert {"ref": "training-prompts"} in card["modelParameters"]["datasets"]


def test_page_refers_to_nothing_outside_and_runs_nothing() -> None:
    page = issue.card_html(reading(text=HARMLESS)).decode()
    assert "<script" not in page
    assert "\u202e" not in page
    assert page.count("<style>") == 1
    assert not re.search(r"<[a-z][^>]*\s(src|href|on\w+|action|data)\s*=", page)
    assert not re.search(r"url\(|@import|<(link|iframe|object|embed|form|base|img)\b", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}  # the name of SVG
    assert page.count("<svg") == 3
    assert issue.card_html(reading("public")).count(b"<svg") == 1, "the public has no chart of steps"


def test_chart_is_drawn_from_the_numbers() -> None:
    series = Series(steps=[1, 2, 3], values={"reward": [0.0, None, 1.0], "frac_reward_zero_std": [None, 0.5, None]})
    _, chart = svg.charts(Reading(reading().document, series))
    # room of 6 % above and below 0…1 on 146 units of height from 26 on: 26 + 146 · 0.06 / 1.12, and its mirror
    assert 'points="52.0,164.2 570.0,33.8"' in chart.svg
    assert chart.rows == (("1", "0"), ("3", "1"))


def test_pdf_carries_the_seal_in_its_text() -> None:
    made = reading()
    text = pdf_text(pdf.card_pdf(made))
    assert (made.seal in text, made.short_digest in text) == (True, True)
    assert made.seal not in pdf_text(pdf.card_pdf(reading()))  # another salt, another seal: the text is really read


@pytest.mark.parametrize(
    "text",
    [HOSTILE, "".join(map(chr, range(0xD7FF))), "a" * 100_000, "\u0301" * 500, "क्षि" * 300],
    ids=["hostile", "every-character", "long", "accents", "conjuncts"],
)
def test_pdf_takes_any_text(text: str) -> None:
    content = pdf.card_pdf(reading(reward__domain=entry(text)) if text != HOSTILE else reading(text=HARMLESS))
    assert (content[:5], content.rstrip()[-5:]) == (b"%PDF-", b"%%EOF")


def test_a_character_without_a_font_is_a_number_on_paper_and_no_box() -> None:
    """One of Duployan, which no font of this machine has; and a whole script of more than are looked for each."""
    letters = "".join(map(chr, range(0x1BC00, 0x1BC30)))
    for text in ("\U0001bc00 is – it", letters):
        shown = pdf_text(pdf.card_pdf(reading(reward__domain=entry(text))))
        assert ("\\U0001bc00" in shown.replace("\u200b", ""), "because no font here has them" in shown) == (True, True)
    assert "is – it" in pdf_text(pdf.card_pdf(reading(reward__domain=entry("\U0001bc00 is – it"))))
    assert "no font here" not in pdf_text(pdf.card_pdf(reading(reward__domain=entry("é – 10⁻⁶ × 3"))))


@pytest.mark.parametrize("copy", [markdown.card_markdown, issue.card_html, pdf.card_pdf])
def test_every_copy_has_the_rates_of_people_against_the_verifier(copy: Callable[[Reading], bytes]) -> None:
    """Of the 2 that passed people call 1 wrong: Wilson of 1 of 2."""
    classes = {"rewarded_by": ["answer <script>alert(1)</script>\u202e | x"]}
    rows = [Judgement(4, 0, sample, 1, ("right", "wrong")[sample], True, classes) for sample in range(2)]
    content = copy(reading(oversight__human_review=entry("two judged", review_figures(rows))))
    text = pdf_text(content) if copy is pdf.card_pdf else content.decode().replace("\\", "")
    text = " ".join(text.replace("\u00a0", " ").replace("\u200b", "").split())
    assert "People against the verifier, by step" in text
    assert "People against the verifier, by class of completion" in text
    assert text.count("1 of 2, 50.0 % [9.5 %, 90.5 %]") == 4, "agreement and false positives, by step and by class"
    assert b"<script>alert" not in content
