"""Sixty hostile completions in every place that shows what a model wrote: the page holds no element and no attribute
that it does not hold for a harmless one, and every character that would hide or act is marked.

A page that shows completions joins by its address in PAGES.
"""

import re

import pytest
from django.test import Client

from cohort.web.review.rendered import rendered
from cohort.web.review.texts import WINDOW
from tests.factories.hostile import HOSTILE_COMPLETIONS, MARK, RUNS
from tests.factories.runs import Maker
from tests.web.hostile_pages import (
    PAGES,
    PER_GROUP,
    TEXTS,
    HostilePage,
    Shown,
    add_texts,
    faults_of,
    harmless,
    read,
    shown,
)
from tests.web.pages import html
from tests.web.run_page import words


@pytest.fixture
def hostile(maker: Maker) -> Shown:
    return shown(maker, list(TEXTS.values()))


def test_there_are_sixty_that_differ() -> None:
    assert len(set(HOSTILE_COMPLETIONS.values())) == 60


SUMS_UP = {"run", "evaluations"}
"""Pages that may show of completions what follows from them, and no text."""
OF_MARKDOWN = {
    *((tag, "") for tag in ("p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "h1")),
    *((tag, "") for tag in ("h2", "h3", "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "msub")),
    *((tag, "") for tag in ("msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "menclose")),
    *(("code", "class"), ("li", "value"), ("math", "display"), ("mfrac", "linethickness"), ("menclose", "notation")),
    *(("mo", "fence"), ("mo", "form"), ("mo", "stretchy")),
}


def test_no_page_holds_more_than_it_does_for_harmless_texts(viewer: Client, maker: Maker, hostile: Shown) -> None:
    like = shown(maker, harmless())
    faults = []
    for name, addresses in PAGES.items():
        allowed = set(OF_MARKDOWN if "rendered" in name else ())
        for address in addresses(like):
            allowed |= read(viewer, address).elements
        pages = (read(viewer, address) for address in addresses(hostile))
        faults += [(name, *fault) for fault in faults_of(pages, allowed, expected="" if name in SUMS_UP else MARK)]
    assert faults == []


def test_long_completions_are_cut_and_can_be_read_in_windows(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    group = add_texts(maker.attempt(run), 0, [TEXTS["a line of a megabyte"], *TEXTS.values()][:PER_GROUP])
    address = f"/p/ours/runs/{run.pk}/groups/{group.pk}/"
    response = viewer.get(address)
    assert "of 1,048,576 characters. Show the whole completion" in words(html(response))
    assert len(response.content) < 200_000
    first = html(viewer.get(f"{address}samples/0/text/"))
    assert f"characters 1 to {WINDOW:,} of 1,048,576" in words(first)
    last = html(viewer.get(f"{address}samples/0/text/", {"from": "9" * 15}))
    assert "characters 1,000,001 to 1,048,576 of 1,048,576" in words(last)
    assert ('rel="prev" href="?from=950000"' in last, 'rel="next"' in last) == (True, False)


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_rendered_hides_no_word(name: str) -> None:
    """Every run of letters of the raw text is in what is shown; a formula that TeX would change counts by its raw
    text, and one that is rendered may lose its commands alone."""
    text = TEXTS[name][:4000]
    shown_as = rendered(text)
    if shown_as is None:
        assert name in ("deep quotes", "deep lists")
        return
    page = HostilePage.of(shown_as)
    seen = "".join("".join(page.text).split())
    commands = re.compile(r"\\[a-zA-Z]+|&[#\w]+;|[a-z]{5,}=|0009|left|right|begin|end|array")
    missing = [word for word in re.findall(r"[a-zA-Z0-9]{3,}", commands.sub(" ", text)) if word not in seen]
    assert missing == []
    assert RUNS not in "".join(value for value in page.acts)
