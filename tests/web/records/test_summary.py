"""The summary for officers: one page in every form, of each audience what is for it, cut and never silently."""

import json
from io import BytesIO
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pypdf import PdfReader

from cohort.accounts.models import User
from cohort.evidence.record import redact
from cohort.records.after_seal import services
from cohort.records.cards import pdf
from cohort.records.document_view import NOT_PROVEN, view_document
from cohort.records.fields import FIELDS
from cohort.records.models import Record
from cohort.records.summary import LONGEST, MORE, SUITES, clamp, summarise
from tests.factories.documents import HOSTILE, comparison, document, entry, reading
from tests.tables import cases
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import logged

LONG = {
    "words": "What was said of it goes on for many more words than any page has room for. " * 30,
    "wide": "W" * 3000,
    "ideographs": "日本語" * 900,
    "unseen": "\u202e" * 900,
    "lines": "a\n" * 900,
    "marks": HOSTILE.replace("\ud800", "") * 20,
}


def pages(content: bytes) -> list[str]:
    return [page.extract_text().replace("\u00a0", " ") for page in PdfReader(BytesIO(content)).pages]


def filled(text: str, suites: int = 12) -> dict[str, dict[str, Any]]:
    """Every field says this, and there are more suites than the page has room for."""
    compared = [comparison(f"{text[:200]} {number}") for number in range(suites)]
    return {"behaviour__performance": entry(text, compared)}


@pytest.mark.parametrize("name", LONG)
def test_it_is_one_page_whatever_was_said(name: str) -> None:
    for audience in ("public", "internal"):
        made = reading(audience, text=LONG[name], **filled(LONG[name]))
        (alone,) = pages(pdf.summary_pdf(summarise(made.view)))
        assert (made.short_digest in alone, MORE.split()[-1] in alone) == (True, True), "the seal is at its foot"


def test_it_is_the_first_page_of_the_card() -> None:
    made = reading(reward__source=entry("on many words " * 20))
    first, second, *_ = pages(pdf.card_pdf(made))
    assert (made.short_digest in first, MORE.split()[-1] in first, "Record of" in second) == (True, True, True)
    assert "As of the seal" in first


@pytest.mark.parametrize(("text", "short"), cases("records/clamped", "text", "short"))
def test_what_is_cut_says_so(text: str, short: str) -> None:
    assert clamp(text, 40) == short


def test_nothing_that_fits_is_cut() -> None:
    assert clamp("a" * LONGEST) == "a" * LONGEST
    assert clamp("a" * (LONGEST + 1)).endswith(MORE)


def test_suites_that_are_left_out_are_counted_and_grave_ones_are_not_among_them() -> None:
    verdicts = ["better"] * 7 + ["undecided at margin 5", "not worse", "regressed"]
    suites = [{**comparison(f"suite {number}"), "verdict": verdict} for number, verdict in enumerate(verdicts)]
    made = summarise(view_document(document(behaviour__performance=entry("as compared", suites))))
    assert len(made.suites) == SUITES
    assert {"suite 7", "suite 9"} <= {suite.suite for suite in made.suites}
    assert made.left_out == "5 more suites in the record: 4 better, 1 not worse."


def test_what_judged_the_held_out_problems_is_not_cut_off() -> None:
    judged = {"text": "by the training reward; probe: 3 of 120 wrong answers rewarded"}
    protocol = entry("as stated", {"training_reward_judges": judged})
    first, *_ = pages(pdf.card_pdf(reading(behaviour__protocol=protocol)))
    assert "3 of 120 wrong answers rewarded" in " ".join(first.split())


def test_what_is_not_stated_and_what_is_withheld_is_named() -> None:
    whole = document(reward__domain=entry("not stated", source="not stated"))
    made = summarise(view_document(redact(whole, "public")))
    hidden = [facts.label for part in FIELDS.values() for facts in part.values() if facts.audience != "public"]
    assert made.not_stated == f"2 of {made.view.total} fields: Reward domains, Reasoning traces shown to users."
    assert made.withheld.startswith(f"{len(hidden)}: Run, Attempts,")
    assert made.withheld.endswith(f" and {len(hidden) - 12} more.")
    assert "withheld: for those who build on the model" in [line.text for line in made.findings]


def test_a_line_break_in_words_is_a_line_break_on_paper() -> None:
    said = entry("first line\nsecond line", source="stated by ada") | {"note": "a note\nof two lines"}
    text = "\n".join(pages(pdf.card_pdf(reading(reward__brittleness=said)))[1:])
    assert ("first line\nsecond line" in text, "a note\nof two lines" in text, "\\n" in text) == (True, True, False)


# ---------------------------------------------------------------------- pages and downloads


@pytest.fixture
def url(sealed: Record) -> str:
    return f"/p/ours/runs/{sealed.run_id}/record/1/"


@pytest.mark.django_db
def test_the_page_and_its_pdf_are_for_anyone_unless_asked(sealed: Record, world: World, url: str) -> None:
    viewer, reviewer = world.client("bob"), world.client("rita")
    page = html(viewer.get(f"{url}summary/"))
    for text in (sealed.short_digest, "Not signed off.", "For anyone.", *map(str, NOT_PROVEN[:1])):
        assert text in page
    assert "withheld: for those who build on the model" in page
    assert viewer.get(f"{url}summary/?audience=internal").status_code == 403
    assert viewer.get(f"{url}summary/?audience=nobody").status_code == 404
    assert "for those who build" not in html(reviewer.get(f"{url}summary/?audience=internal"))
    response = viewer.get(f"{url}1/summary-public.pdf")
    assert response["Content-Type"] == "application/pdf"
    assert response["Content-Disposition"].endswith('-public-summary.pdf"')
    (text,) = pages(response.content)
    assert ("Not signed off." in text, sealed.short_digest in text) == (True, True)
    (body,) = logged("summary_downloaded")
    assert (body["actor"], body["data"]["audience"]) == ("user:bob", "public")


@pytest.mark.django_db
def test_signatures_and_the_revocation_are_on_what_is_downloaded_later(
    sealed: Record, world: World, alice: User, url: str
) -> None:
    for person, role in ((world.oscar, "operator"), (world.rita, "reviewer")):
        services.sign_off(record=sealed, actor=person, role=role, decision="approved", reason="read it")
    reviewer = world.client("rita")
    named, bare = (pages(reviewer.get(f"{url}1/card-{each}.pdf").content)[0] for each in ("internal", "public"))
    for text in (named, bare):
        assert "Signed off by both." in text
    assert ("by oscar" in named, "oscar" in bare) == (True, False)
    services.revoke(record=sealed, actor=alice, reason="The held-out problems were in the training data.")
    for path in ("1/card-public.pdf", "1/summary-public.pdf"):
        assert "The held-out problems were in the training data." in pages(reviewer.get(url + path).content)[0]
    assert "Revoked on" in html(reviewer.get(f"{url}summary/"))
    bodies = logged("card_pdf_downloaded")
    assert [body["data"]["audience"] for body in bodies] == ["internal", "public", "public"]


@pytest.mark.django_db
def test_the_public_page_has_it_too(sealed: Record, world: World, oscar: User) -> None:
    link = services.public_link_make(record=sealed, actor=oscar)
    client = Client()
    page = html(client.get(reverse("public_summary", args=[link.token])))
    assert (sealed.short_digest in page, "oscar" in page) == (True, False)
    (text,) = pages(client.get(reverse("public_summary_pdf", args=[link.token])).content)
    assert sealed.short_digest in text
    assert link.token not in json.dumps(logged("summary_downloaded"))
    services.public_link_end(record=sealed, actor=oscar)
    for name in ("public_summary", "public_summary_pdf"):
        assert client.get(reverse(name, args=[link.token])).status_code == 404
