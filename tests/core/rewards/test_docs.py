"""Every kind of reward has a page that tells all of its parameters, and every example on it is so."""

import re
from pathlib import Path

import pytest

from grpo_core.rewards import KINDS
from tests.core.rewards.examples import PAGES, Example, examples, run

EXAMPLES = [(page, example) for page in sorted(PAGES.glob("*.md")) for example in examples(page)]
OF_RULES = [
    example for _, example in EXAMPLES if all(KINDS[kind].place in ("here", "aside") for kind in example.kinds)
]  # the others need a sandbox, a model or a server, and are run where their kind is tested


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_page_with_its_parameters_and_two_examples(kind: str) -> None:
    page = PAGES / f"{kind}.md"
    assert page.is_file(), f"docs/rewards/{kind}.md is missing"
    text = page.read_text(encoding="utf-8")
    untold = [name for name in KINDS[kind].params.model_fields if f"`{name}`" not in text]
    assert untold == [], f"docs/rewards/{kind}.md does not tell of these parameters"
    shown = [one for there, example in EXAMPLES if there == page and kind in example.kinds for one in example.shown]
    assert len(shown) >= 2, f"docs/rewards/{kind}.md shows {len(shown)} completions with what they earn"


def test_the_overview_links_every_page_and_no_page_is_of_no_kind() -> None:
    overview = (PAGES.parent / "rewards.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(rewards/(\w+)\.md\)", overview)
    assert set(KINDS) - set(linked) == set()
    assert {page.stem for page in PAGES.glob("*.md")} - set(linked) == set()


@pytest.mark.parametrize("example", OF_RULES, ids=lambda example: example.where)
def test_what_a_page_shows_is_so(example: Example) -> None:
    run(example)


PAGE = """
````yaml reward
reward: {components: [{name: right, kind: numeric}]}
problem: {answer: "82"}
````

````completion
<answer>82</answer>
ARROW
````
"""


@pytest.mark.parametrize(
    ("arrow", "fault"),
    [
        ("→ 1", ""),
        ("→ 1: 82", ""),
        ("→ 1: 8…", ""),
        ("→ 0", "reward 1.0"),
        ("→ 0.6", "reward 1.0"),
        ("→ 1: 83", "reward 1.0"),
        ("→ 1: 9…", "reward 1.0"),
        ("→ error sample", "reward 1.0"),
        ("1", "expected an arrow"),
        ("→ one", "expected an arrow"),
    ],
)
def test_a_page_that_is_wrong_is_found(tmp_path: Path, arrow: str, fault: str) -> None:
    page = tmp_path / "numeric.md"
    page.write_text(PAGE.replace("ARROW", arrow), encoding="utf-8")
    if not fault:
        run(examples(page)[0])
        return
    with pytest.raises((AssertionError, ValueError), match=fault):
        run(examples(page)[0])


def test_a_shown_error_must_be_of_its_class(tmp_path: Path) -> None:
    page = tmp_path / "numeric.md"
    page.write_text(PAGE.replace('"82"', '"a dozen"').replace("ARROW", "→ error sample: RewardError"), encoding="utf-8")
    run(examples(page)[0])
    page.write_text(PAGE.replace('"82"', '"a dozen"').replace("ARROW", "→ error timeout"), encoding="utf-8")
    with pytest.raises(AssertionError):
        run(examples(page)[0])


def test_text_and_tokens_of_a_completion(tmp_path: Path) -> None:
    page = tmp_path / "length.md"
    page.write_text(PAGE.replace("ARROW", "\n→ −0.5 at 18432 tokens"), encoding="utf-8")
    shown = examples(page)[0].shown[0]
    assert (shown.completion, shown.tokens, shown.value) == ("<answer>82</answer>\n", 18432, -0.5)
    page.write_text(PAGE.replace("<answer>82</answer>\nARROW", "→ 0"), encoding="utf-8")
    assert examples(page)[0].shown[0].completion == ""
