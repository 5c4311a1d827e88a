"""Runs and pages that hold sixty hostile completions, and what a page must not hold for all of that: an element or an
attribute that it does not hold for harmless ones, an address elsewhere, a character that hides or acts.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from django.test import Client

from cohort.base.storable import storable
from cohort.review.models import Group, Sample
from cohort.runs.logs import log_append
from cohort.runs.models import Attempt, Run
from tests.factories.hostile import HOSTILE_COMPLETIONS, MARK
from tests.factories.lab import evaluated, talked
from tests.factories.runs import Maker, add_evaluation, add_group
from tests.factories.suites import ITEMS, add_suite

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
        add_texts(attempt, index, texts[index : index + PER_GROUP])
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


def add_texts(attempt: Attempt, index: int, texts: list[str]) -> Group:
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
class HostilePage(HTMLParser):
    """Every element with its attributes' names, and what a browser would be made to do."""

    elements: set[tuple[str, str]] = field(default_factory=set)
    acts: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    """What is read on the page; not what a field of a form holds, which is sent back as it came."""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            self.elements.add((tag, name))
            outside = name in ("src", "href", "action") and not re.match(r"[/?#]|$", value or "")
            if name.startswith(("on", "hx-on", "data-hx-on")) or outside or (value or "").startswith("//"):
                self.acts.append(f"<{tag} {name}={value!r}>")
            if (tag, name) not in FIELDS:
                self.text.append(value or "")
        self.elements.add((tag, ""))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.acts.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.acts += [] if decl == "doctype html" else [decl]

    @classmethod
    def of(cls, content: str) -> "HostilePage":
        page = cls()
        page.feed(content)
        page.close()
        return page


FIELDS = {("input", "value"), ("option", "value")}


def read(client: Client, address: str, *, statuses: tuple[int, ...] = (200,)) -> HostilePage:
    """The page below the project's address, or at an address of its own."""
    response = client.get(address if address.startswith("/") else f"/p/ours/{address}")
    assert response.status_code in statuses, (address, response.status_code)
    return HostilePage.of(response.content.decode())


_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Of Unicode's Default_Ignorable_Code_Point what is neither control nor format, and the empty Braille pattern."""


def unseen(texts: Iterable[str]) -> set[str]:
    """Characters that a reader would not see, or that would change others."""
    kinds = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    characters = set().union(*texts) - {"\n", "\t"}
    return {each for each in characters if unicodedata.category(each) in kinds or _IGNORABLE.match(each)}


def harmless() -> list[str]:
    """As many texts, as long, so that a page has all that it has for long ones."""
    likeness = ["<think>a</think><answer>b</answer>" + "c" * min(len(text), 60_000) for text in TEXTS.values()]
    likeness[0] = "a</think>b<answer>c"
    likeness[1] = "<think>a"
    return [f"{text}{index}" for index, text in enumerate(likeness)]


MARKED = {("span", ""), ("span", "class"), ("span", "title"), ("a", "rel")}
"""An unseen character as it is shown, and the way to the rest of a longer log."""


def faults_of(
    pages: Iterable[HostilePage], allowed: set[tuple[str, str]], *, expected: str = MARK
) -> Iterator[tuple[object, ...]]:
    """What these pages hold beyond what is allowed, and whether none of them shows the text that is expected."""
    shown = False
    for page in pages:
        yield from sorted(page.elements - allowed - MARKED)
        yield from ((act,) for act in page.acts)
        yield from ((f"U+{ord(character):04X}",) for character in sorted(unseen(page.text)))
        shown = shown or any(expected in text for text in page.text)
    if not shown:
        yield (f"{expected!r} is not shown",)
