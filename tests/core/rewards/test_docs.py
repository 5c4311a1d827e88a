"""Every kind of reward has a page with all of its parameters, and every example on it is so."""

import re

import pytest

from grpo_core.rewards import KINDS
from tests.core.rewards.examples import PAGES, examples, run

EXAMPLES = [(page, example) for page in sorted(PAGES.glob("*.md")) for example in examples(page)]
OF_RULES = [
    example for _, example in EXAMPLES if all(KINDS[kind].place in ("here", "aside") for kind in example.kinds)
]  # the others need a sandbox, a model or a server, and are run where their kind is tested


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_page_with_its_parameters_and_two_examples(kind):
    page = PAGES / f"{kind}.md"
    text = page.read_text(encoding="utf-8")
    assert [name for name in KINDS[kind].params.model_fields if f"`{name}`" not in text] == []
    shown = [one for there, example in EXAMPLES if there == page and kind in example.kinds for one in example.shown]
    assert len(shown) >= 2


def test_the_overview_links_every_page_and_no_page_is_of_no_kind():
    overview = (PAGES.parent / "rewards.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(rewards/(\w+)\.md\)", overview)
    assert set(KINDS) - set(linked) == set()
    assert {page.stem for page in PAGES.glob("*.md")} - set(linked) == set()


@pytest.mark.parametrize("example", OF_RULES, ids=lambda example: example.where)
def test_what_a_page_shows_is_so(example):
    run(example)
