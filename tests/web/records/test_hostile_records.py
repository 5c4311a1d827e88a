"""Sixty hostile completions in a record, in its cards and in what checks them: nothing becomes markup, nothing steers a
terminal, nothing hides, and every text can be read back from the card."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.urls import reverse
from markdown_it import MarkdownIt
from pypdf import PdfReader

from cohort.audit import services as audit
from cohort.evidence.judgements import read_judgements
from cohort.evidence.verify import main as verify
from cohort.records.after_seal.services import feedback, public_link_make
from cohort.records.cards import bom, data_files, issue, markdown, pdf, readme
from cohort.records.cards.download import write_download
from cohort.records.cards.reading import Reading
from cohort.records.fields import COMMON_FIELDS
from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.records.status.services import status_issue
from cohort.records.traces.disclosure import disclose
from cohort.review.models import Sample
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from grpo_core.records import types as records
from grpo_core.records.commitments import commit
from tests.factories import sealed_run
from tests.factories.documents import comparison, entry, reading
from tests.factories.hostile import MARK
from tests.web.hostile_pages import MARKED, TEXTS, HostilePage, faults_of, harmless, read, unseen
from tests.web.records.conftest import World
from tests.web.records.records import TRACES, files_of, lines

pytestmark = pytest.mark.django_db
SHORT = [text[:3000] for text in TEXTS.values()]
STRUCTURED = {"behaviour.performance", "oversight.human_review"}


def reading_of(texts: list[str], title: str) -> Reading:
    """A record whose fields, notes, title and suites are the texts; the rest says nothing."""
    names = [f"{section}__{name}" for section, part in COMMON_FIELDS.items() for name in part]
    free = [name for name in names if name.replace("__", ".") not in STRUCTURED]
    given = {name: entry(text) | {"note": text[:200]} for name, text in zip(free, texts, strict=False)}
    compared = [comparison(text[:80]) for text in texts]
    return reading(text=title, behaviour__performance=entry("as compared", compared), **given)


@pytest.fixture(scope="module")
def hostile() -> Reading:
    return reading_of(SHORT, "".join(text[:6] for text in SHORT))


@pytest.fixture(scope="module")
def like() -> Reading:
    return reading_of([text[:3000] for text in harmless()], "harmless")


def rendered(text: str) -> str:
    """As hubs render Markdown, raw HTML and all."""
    return str(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))


MARKDOWN: dict[str, Callable[[Reading], bytes]] = {
    "CARD.md": markdown.card_markdown,
    **{path: lambda read, path=path: data_files.sheet(read, path=path) for path in data_files.SHEETS},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", MARKDOWN)
def test_markdown_has_the_markup_of_a_harmless_record(hostile: Reading, like: Reading, name: str) -> None:
    bodies = [MARKDOWN[name](made).decode() for made in (like, hostile)]
    pages = [HostilePage.of(rendered(re.sub(r"\A---\n.*?\n---\n", "", body, flags=re.DOTALL))) for body in bodies]
    assert list(faults_of([pages[1]], pages[0].elements - MARKED, expected=MARK if name == "CARD.md" else "")) == []
    assert not unseen(bodies[1].split("\n"))
    assert bodies[1].count("\n") <= bodies[0].count("\n"), "a text is on one line"
    assert not re.search(r"^\s*(```|~~~)", bodies[1], re.MULTILINE)


def test_the_head_of_the_card_is_yaml_of_one_document(hostile: Reading) -> None:
    text = markdown.card_markdown(hostile).decode()
    head = yaml.safe_load(text.split("\n---\n")[0].removeprefix("---\n"))
    assert head["library_name"] == "transformers"
    assert len(head["model-index"][0]["results"]) == len(SHORT)
    assert not unseen(json.dumps(head, ensure_ascii=False).split("\n"))


def test_html_holds_what_it_holds_for_a_harmless_record(hostile: Reading, like: Reading) -> None:
    pages = [HostilePage.of(issue.card_html(made).decode()) for made in (like, hostile)]
    assert list(faults_of([pages[1]], pages[0].elements)) == []


def test_the_texts_of_the_pdf_are_seen_and_nothing_in_it_acts(hostile: Reading) -> None:
    reader = PdfReader(BytesIO(pdf.card_pdf(hostile)))
    text = "\n".join(page.extract_text() for page in reader.pages)
    assert MARK in text.replace("\n", "")
    bidi = {
        sign for sign in text if unicodedata.bidirectional(sign) in ("LRE", "RLE", "LRO", "RLO", "LRI", "RLI", "FSI")
    }
    assert (bidi, "\x1b" in text, "\\u202e" in text) == (set(), False, True)
    acts = ("/JS", "/JavaScript", "/OpenAction", "/AA", "/Launch", "/URI", "/SubmitForm", "/EmbeddedFiles")
    names = {name for each in _dictionaries(reader) for name in each}
    assert names & set(acts) == set()


def _dictionaries(reader: PdfReader) -> Iterator[dict[str, Any]]:
    for number in (*reader.xref.get(0, ()), *reader.xref_objStm):
        if isinstance(each := reader.get_object(number), dict):
            yield each


def test_readme_and_bill_of_materials_are_text_and_json(hostile: Reading) -> None:
    plain = readme.readme(hostile, ["record.json"]).decode()
    assert not unseen(plain.split("\n"))
    assert json.loads(bom.bom(hostile))["bomFormat"] == "CycloneDX"


# ---------------------------------------------------------------------- a run that sampled them


PER_STEP = 20
"""Of three steps."""


def reported(run: Run) -> list[records.Record]:
    """What a trainer reports that sampled and evaluated them."""
    texts, made = iter(TEXTS.values()), []
    for record in sealed_run.whole(run):
        if isinstance(record, records.EvalItem) and record.phase == "after":
            number = int(record.problem_id.removeprefix("add-"))
            record = record.model_copy(update={"completion": [*TEXTS.values()][number % 60][:5000]})
        if isinstance(record, records.Commitments):
            continue
        if isinstance(record, records.Group):
            first = record.samples[0]
            score = first.components["answer"].model_copy(update={"detail": "".join(SHORT)[:500]})
            samples = tuple(
                first.model_copy(
                    update={"index": at, "completion": next(texts), "components": {"answer": score}, "reward": at % 2}
                )
                for at in range(PER_STEP)
            )
            (record,), committed = commit([record.model_copy(update={"samples": samples})])
            made.append(committed)
        made.append(record)
    return made


@pytest.fixture
def sampled(world: World, monkeypatch: pytest.MonkeyPatch) -> Record:
    """With judgements whose notes are texts too."""
    monkeypatch.setattr(pdf, "card_pdf", lambda _: b"%PDF-1.7 %%EOF")
    run = world.launch()
    run = sealed_run.finished(run, reported(run))
    for at, sample in enumerate(Sample.objects.filter(run=run).order_by("step", "index")):
        verdict = "right" if at % 2 else "wrong"
        sample_judge(sample=sample, actor=world.rita, verdict=verdict, note=sample.completion[:2000])
    return record_seal(run=run)


def test_the_card_holds_every_text_and_every_page_of_it_is_inert(
    sampled: Record, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = files_of(sampled.card("internal"))
    traced = [sample["completion"] for group in lines(files[TRACES]) for sample in group["samples"]]
    assert sorted(traced) == sorted(TEXTS.values())
    items = lines(files["evals/texts-after.jsonl"])
    assert {item["completion"] for item in items} == {text[:5000] for text in TEXTS.values()}
    assert len(read_judgements(lines(files["judgements.jsonl"]))) == len(TEXTS)
    for name, content in files.items():
        if name.endswith((".json", ".jsonl", ".md", ".txt", ".html", ".yaml")):
            content.decode()

    # what checks it prints nothing that steers a terminal
    given = ["--key", audit.public_keys()[0][-1]]
    status_issue(record=sampled)
    write_download(sampled.card("internal"), tmp_path / "card.zip")
    path = str(tmp_path / "card.zip")
    proof = tmp_path / "proof.json"
    for sample in Sample.objects.filter(run=sampled.run).order_by("step", "index"):
        shown = disclose(sample=sample, actor=world.alice)
        proof.write_text(json.dumps(shown, ensure_ascii=False))
        if sample.index % 5 == 0:
            assert verify([path, "--trace", str(proof), *given]) == 0
    printed, errors = capsys.readouterr()
    assert (unseen(printed.split("\n")), errors) == (set(), "")

    # pages of the record, of a sample's proof and of the check
    feedback(record=sampled, actor=world.rita, text="".join(SHORT)[:1000], source="".join(SHORT)[:200])
    link = public_link_make(record=sampled, actor=world.oscar)
    client = world.client("alice")
    pages = [read(client, f"runs/{sampled.run_id}/record/"), read(client, reverse("public_card", args=[link.token]))]
    for page in pages:
        assert (page.acts, unseen(page.text)) == ([], set())
    sample = Sample.objects.filter(run=sampled.run).first()
    assert sample is not None
    address = f"/p/ours/runs/{sampled.run_id}/groups/{sample.group_id}/samples/{sample.index}/proof.json"
    response = client.get(address)
    assert (response["Content-Type"], response["X-Content-Type-Options"]) == ("application/json", "nosniff")
    assert response.json()["sample"]["completion"] == sample.completion
