"""Sixty hostile completions in every place that shows what a model wrote: the page holds no element and no attribute
that it does not hold for a harmless one, and every character that would hide or act is marked.

A page that shows completions joins by its address in PAGES.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from django.test import Client

from cohort.base.storable import storable
from cohort.review.models import Group, Sample
from cohort.runs.logs import log_append
from cohort.runs.models import Attempt, Run
from cohort.web.review.rendered import rendered
from cohort.web.review.texts import WINDOW
from tests.factories.hostile import HOSTILE_COMPLETIONS, MARK, RUNS
from tests.factories.lab import evaluated, talked
from tests.factories.runs import Maker, add_evaluation, add_group
from tests.factories.suites import ITEMS, add_suite
from tests.web.pages import html
from tests.web.run_page import words

TEXTS = {name: storable(text) for name, text in HOSTILE_COMPLETIONS.items()}
PER_GROUP = 15


@dataclass
class Shown:
    """A run whose groups, evaluations, logs and chat hold these texts."""

    run: Run
    other: Run
    groups: list[Group]
    chats: list[int]
    jobs: list[int]


def shown(maker: Maker, texts: list[str]) -> Shown:
    """Groups hold each text whole; what else shows texts holds the beginnings of PER_GROUP of them in one."""
    run, other = (maker.run(f"run {index}", state="training") for index in range(2))
    groups = [
        _group(attempt, index, texts[index : index + PER_GROUP])
        for attempt in (maker.attempt(run), maker.attempt(other))
        for index in range(0, len(texts), PER_GROUP)
    ]
    joined = [
        "\n".join(text[:1000] for text in texts[index : index + PER_GROUP]) for index in range(0, len(texts), PER_GROUP)
    ]
    for attempt in (run.attempts.get(), other.attempts.get()):
        for phase in ("before", "after"):
            for index, text in enumerate(joined):
                add_evaluation(attempt, phase, [0.0], suite=f"suite {index}", completion=text)
    attempt = run.attempts.get()
    log_append(attempt=attempt, fence=attempt.fence, offset=0, body="\n".join(reversed(joined)).encode())
    Run.objects.filter(pk=run.pk).update(log_tail="\n".join(joined), reason=joined[0], note=joined[-1][:500])
    version = add_suite(
        maker.project, maker.actor, f"capitals-{run.pk}", content=ITEMS.splitlines()[0]
    ).suite.versions.get()
    given, actor = maker.base_model, maker.actor
    return Shown(
        run,
        other,
        groups[: len(groups) // 2],
        chats=[talked(actor, f"? {text[:500]}", {"model": text}, base_model=given).pk for text in joined],
        jobs=[evaluated(given, actor, version, [0.0], completion=text).pk for text in joined],
    )


def _group(attempt: Attempt, index: int, texts: list[str]) -> Group:
    rewards, first = [float(number % 2) for number in range(len(texts))], texts[0][:2000]
    group = add_group(attempt, rewards, index=index, prompt=first, answer=first)
    samples = list(group.samples.order_by("index"))
    for sample, text in zip(samples, texts, strict=True):
        sample.completion = text
        sample.components["answer"] |= {"detail": text[:200], "printed": text[:1000], "traceback": text[:1000]}
        sample.components["format"] |= {"error": text[:200]}
    Sample.objects.bulk_update(samples, ["completion", "components"])
    return group


PAGES: dict[str, Callable[[Shown], Iterator[str]]] = {
    "group": lambda on: (f"runs/{on.run.pk}/groups/{group.pk}/" for group in on.groups),
    "group, rendered": lambda on: (f"runs/{on.run.pk}/groups/{group.pk}/?view=rendered" for group in on.groups),
    "group, unfolded and sorted": lambda on: (
        f"runs/{on.run.pk}/groups/{group.pk}/?fold=off&sort=length&first={number}&second={number + 1}"
        for group in on.groups
        for number in range(1, PER_GROUP)
    ),
    "whole completion": lambda on: (
        f"runs/{on.run.pk}/groups/{group.pk}/samples/{index}/text/" for group in on.groups for index in range(PER_GROUP)
    ),
    "groups": lambda on: iter([f"runs/{on.run.pk}/groups/"]),
    "run": lambda on: iter([f"runs/{on.run.pk}/"]),
    "logs": lambda on: iter([f"runs/{on.run.pk}/logs/"]),
    "evaluations": lambda on: iter([f"runs/{on.run.pk}/evaluations/"]),
    "answers of two runs": lambda on: iter([f"runs/compare/answers/?run={on.run.pk}&run={on.other.pk}"]),
    "chat": lambda on: (f"lab/chat/{chat}/" for chat in on.chats),
    "evaluation of a model": lambda on: (f"lab/jobs/{job}/" for job in on.jobs),
}
"""What shows completions → addresses below the project's, for a run that holds them."""


@dataclass
class _Page(HTMLParser):
    """Every element with its attributes' names, and what a browser would be made to do."""

    elements: set[tuple[str, str]] = field(default_factory=set)
    acts: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            self.elements.add((tag, name))
            outside = name in ("src", "href", "action") and not re.match(r"[/?#]|$", value or "")
            if name.startswith(("on", "hx-on", "data-hx-on")) or outside or (value or "").startswith("//"):
                self.acts.append(f"<{tag} {name}={value!r}>")
            self.text.append(value or "")
        self.elements.add((tag, ""))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.acts.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.acts += [] if decl == "doctype html" else [decl]


def read(client: Client, address: str) -> _Page:
    response = client.get(f"/p/ours/{address}")
    assert response.status_code == 200, address
    page = _Page()
    page.feed(response.content.decode())
    page.close()
    return page


def unseen(page: _Page) -> set[str]:
    """Characters of the page that a reader would not see, or that would change others."""
    kinds = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return {character for character in "".join(page.text) if unicodedata.category(character) in kinds} - {"\n", "\t"}


SUMS_UP = {"run", "evaluations"}
"""Pages that may show of completions what follows from them, and no text."""
MARKED = {("span", ""), ("span", "class"), ("span", "title"), ("a", "rel")}
"""An unseen character as it is shown, and the way to the rest of a longer log."""
OF_MARKDOWN = {
    *((tag, "") for tag in ("p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "h1")),
    *((tag, "") for tag in ("h2", "h3", "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "msub")),
    *((tag, "") for tag in ("msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "menclose")),
    *(("code", "class"), ("li", "value"), ("math", "display"), ("mfrac", "linethickness"), ("menclose", "notation")),
    *(("mo", "fence"), ("mo", "form"), ("mo", "stretchy")),
}


@pytest.fixture
def hostile(maker: Maker) -> Shown:
    return shown(maker, list(TEXTS.values()))


def test_there_are_sixty_that_differ() -> None:
    assert len(set(HOSTILE_COMPLETIONS.values())) == 60


def test_no_page_holds_more_than_it_does_for_harmless_texts(viewer: Client, maker: Maker, hostile: Shown) -> None:
    """Harmless ones are as long, so that the page has all it has for long ones, and as many."""
    likeness = ["<think>a</think><answer>b</answer>" + "c" * min(len(text), 60_000) for text in TEXTS.values()]
    likeness[0] = "a</think>b<answer>c"
    likeness[1] = "<think>a"
    harmless = shown(maker, [f"{text}{index}" for index, text in enumerate(likeness)])
    faults = []
    for name, addresses in PAGES.items():
        allowed = MARKED | (OF_MARKDOWN if "rendered" in name else set())
        for address in addresses(harmless):
            allowed |= read(viewer, address).elements
        texts = []
        for address in addresses(hostile):
            page = read(viewer, address)
            texts += page.text
            faults += [(name, address, element) for element in sorted(page.elements - allowed)]
            faults += [(name, address, act) for act in page.acts]
            faults += [(name, address, f"U+{ord(character):04X}") for character in sorted(unseen(page))]
        assert MARK in "".join(texts) or name in SUMS_UP, f"{name} shows none of the texts"
    assert faults == []


def test_long_completions_are_cut_and_can_be_read_in_windows(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    group = _group(maker.attempt(run), 0, [TEXTS["a line of a megabyte"], *TEXTS.values()][:PER_GROUP])
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
    page = _Page()
    page.feed(shown_as)
    page.close()
    seen = "".join("".join(page.text).split())
    commands = re.compile(r"\\[a-zA-Z]+|&[#\w]+;|[a-z]{5,}=|0009|left|right|begin|end|array")
    missing = [word for word in re.findall(r"[a-zA-Z0-9]{3,}", commands.sub(" ", text)) if word not in seen]
    assert missing == []
    assert RUNS not in "".join(value for value in page.acts)
