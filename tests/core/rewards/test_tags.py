"""tags pays a sequence of blocks, in order and number, and names the first thing that is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.rewards.scoring import refused, taken, told, value


def blocks(names: str) -> str:
    return "".join(f"<{name}>x</{name}>" for name in names)


@pytest.mark.parametrize(
    ("completion", "detail"),
    [
        ("<think>a</think><answer>b</answer>", ""),
        (" <think>a</think>\n\n<answer>b</answer>\n", ""),
        ("<think>a <b>bold</b></think><answer>b</answer>", ""),
        ("<answer>b</answer>", "blocks are answer; expected think answer"),
        ("<answer>b</answer><think>a</think>", "blocks are answer think; expected think answer"),
        (
            "<think>a</think><answer>b</answer><answer>c</answer>",
            "blocks are think answer answer; expected think answer",
        ),
        ("<think>a<answer>b</answer>", "<think> is not closed before <answer>"),
        ("<think>a</think><answer>b", "<answer> is not closed before the end"),
        ("<think><think>a</think></think><answer>b</answer>", "<think> is not closed before <think>"),
        ("a</think><answer>b</answer>", "</think> without <think> before it"),
        ("<think>a</think> so <answer>b</answer>", "text before <answer>"),
        ("<think>a</think><answer>b</answer> done", "text after the last block"),
        ("<think> </think><answer>b</answer>", "<think> is empty"),
        ("<THINK>a</THINK><answer>b</answer>", "text before <answer>"),
        ("", "blocks are none; expected think answer"),
    ],
)
def test_faults(completion: str, detail: str) -> None:
    found = told("tags", completion)
    assert (found.detail, found.value, found.passed) == (detail, float(not detail), not detail)


@pytest.mark.parametrize(
    ("sequence", "right", "wrong"),
    [
        ("a b", ["ab"], ["a", "b", "ba", "aab", "abb", "abc"]),
        ("a? b", ["b", "ab"], ["a", "aab", ""]),
        ("a* b", ["b", "ab", "aaab"], ["a", "ba", ""]),
        ("a+ b", ["ab", "aab"], ["b", "ba"]),
        ("a{2} b", ["aab"], ["ab", "aaab"]),
        ("a{2,3} b", ["aab", "aaab"], ["ab", "aaaab"]),
        ("a{2,} b", ["aab", "aaaaab"], ["ab"]),
        ("a b a", ["aba"], ["ab", "aab", "baa"]),
        ("a* a", ["a", "aaa"], [""]),
        ("a{0,2} a{2} b", ["aab", "aaaab"], ["ab", "aaaaab"]),
        ("a* b* a* b+", ["b", "ab", "aabbab"], ["a", "ba", ""]),
    ],
)
def test_how_often(sequence: str, right: list[str], wrong: list[str]) -> None:
    names = [*sequence.split(), "c*"] if "c" in "".join(wrong) else sequence.split()
    for some in right:
        assert value("tags", blocks(some), sequence=names) == 1, some
    for some in wrong:
        if "c" not in some:
            assert value("tags", blocks(some), sequence=names) == 0, some


@given(
    st.text("ab", max_size=8),
    st.lists(st.sampled_from(["a", "b", "a?", "b*", "a+", "b{2}", "a{1,2}"]), min_size=1, max_size=5),
)
def test_a_sequence_is_what_the_same_pattern_of_letters_is(names: str, sequence: list[str]) -> None:
    import re

    from grpo_core.rewards.tags import TagsParams, _entries, _in_order

    entries = _entries(TagsParams(sequence=tuple(sequence)))
    assert _in_order(list(names), entries) == (re.fullmatch("".join(sequence), names) is not None)


def test_what_may_stand_between() -> None:
    spaced, worded, empty = "<a>x</a>\n", "so <a>x</a>", "<a></a>"
    assert [value("tags", spaced, sequence=["a"], between=how) for how in ("nothing", "whitespace", "text")] == [
        0,
        1,
        1,
    ]
    assert [value("tags", worded, sequence=["a"], between=how) for how in ("nothing", "whitespace", "text")] == [
        0,
        0,
        1,
    ]
    assert [value("tags", empty, sequence=["a"], allow_empty=how) for how in (False, True)] == [0, 1]


def test_shares() -> None:
    # three names and the whole form: four parts
    def share(completion: str) -> float | None:
        return value("tags", completion, sequence=["plan", "step{2,3}", "answer"], pay="share")

    assert share("<plan>x</plan><step>x</step><step>x</step><answer>x</answer>") == 1
    assert share("<answer>x</answer><plan>x</plan><step>x</step><step>x</step>") == 0.75
    assert share("<plan>x</plan><step>x</step><answer>x</answer>") == 0.5
    assert share("<plan>x<step>x</step><answer>x</answer><answer>") == 0
    assert share("") == 0


def test_parameters() -> None:
    assert refused("tags", sequence=["note*"])["sequence"].startswith("an empty completion would pass")
    assert refused("tags", sequence=["a{3,2}"])["sequence"] == "a{3,2} asks for more blocks than it allows"
    assert "sequence.0" in refused("tags", sequence=["<think>"])
    assert "sequence" in refused("tags", sequence=[])
    assert taken("tags", sequence=["think?", "answer"])
