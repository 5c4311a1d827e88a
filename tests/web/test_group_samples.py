"""The samples of a group's page: their order, equal ones as one card, parts of a completion, the verifier's detail, and
two completions compared.
"""

import re

import pytest
from django.test import Client

from cohort.base.formatting import num
from cohort.review.models import Group, Sample
from cohort.runs.models import Run
from cohort.web.review.rendered import rendered
from cohort.web.review.texts import (
    LONGEST_COMPARED,
    LONGEST_PART,
    ReasoningTags,
    completion_parts,
    difference,
    prompt_turns,
    question_of,
    shown_characters,
)
from tests.factories.runs import Maker, add_group
from tests.web.pages import html
from tests.web.run_page import words

A, B, C = ("<think>a</think><answer>1</answer>", "<think>b</think><answer>2</answer>", "no form at all")


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training", sampling={"group_size": 5, "prompts_per_step": 3})


@pytest.fixture
def group(maker: Maker, run: Run) -> Group:
    """Samples 1 and 4 are the same; 2 and 5 are the same text, scored differently."""
    group = add_group(
        maker.attempt(run), [1.0, 0.0, None, 1.0, 1.0], advantages=[0.5, -1.5, 0.0, 0.5, 0.75], masked={3: "importance"}
    )
    for sample, text, tokens in zip(group.samples.order_by("index"), (A, B, C, A, B), (9, 30, 20, 9, 10), strict=True):
        sample.completion, sample.tokens, sample.mask_cause = text, tokens, ""
        sample.save()
    return group


def page_of(client: Client, group: Group, **query: object) -> str:
    response = client.get(f"/p/ours/runs/{group.run_id}/groups/{group.pk}/", query)
    assert response.status_code == 200
    return html(response)


def numbers(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="sample-(\d+)', page)]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("order", [1, 4, 2, 3, 5]),
        ("reward", [1, 4, 5, 2, 3]),
        ("advantage", [5, 1, 4, 3, 2]),
        ("length", [2, 3, 5, 1, 4]),
        ("nonsense", [1, 4, 2, 3, 5]),
    ],
)
def test_samples_are_sorted_and_equal_ones_stand_together(
    viewer: Client, group: Group, sort: str, order: list[int]
) -> None:
    page = page_of(viewer, group, sort=sort)
    squares = [int(number) for number in re.findall(r'class="(?:right|wrong|masked)" href="#sample-(\d+)', page)]
    assert numbers(page) == squares == order
    assert (page.count("<article"), page.count("2 × this"), page.count('class="twin"')) == (4, 1, 1)
    assert "The text of sample" in page, "one text with two scores is two cards"


def test_unfolded_each_has_its_card_and_links_keep_what_was_chosen(viewer: Client, group: Group) -> None:
    page = page_of(viewer, group, fold="off", sort="reward", view="rendered", sample=4)
    assert (page.count("<article"), "× this" in page) == (5, False)
    assert 'href="?sort=length&amp;fold=off&amp;view=rendered&amp;sample=4"' in page
    assert 'href="?variant=rloo/none/0&amp;sort=reward&amp;fold=off&amp;view=rendered&amp;sample=4"' in page
    assert 'href="?sort=reward&amp;view=rendered&amp;sample=4"' in page, "folds again"


def test_a_folded_sample_is_marked_and_judged_on_its_own(reviewer: Client, group: Group) -> None:
    page = page_of(reviewer, group, sample=4)
    assert re.search(r'<div class="twin selected" id="sample-4"[^>]*aria-current="true"', page)
    address = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/samples/3/judge/"
    assert f'action="{address}"' in page
    reviewer.post(address, {"verdict": "wrong"})
    assert page_of(reviewer, group).count('aria-pressed="true"') == 1


def test_texts_that_were_deleted_are_never_one_card(viewer: Client, group: Group) -> None:
    Sample.objects.filter(group=group, index__in=(0, 3)).update(completion="", redacted_at="2026-01-02T00:00Z")
    page = page_of(viewer, group)
    assert (page.count("<article"), page.count("Text deleted on 2 Jan 2026")) == (5, 2)
    response = viewer.get(f"/p/ours/runs/{group.run_id}/groups/{group.pk}/samples/0/text/")
    assert response.status_code == 404


def test_a_card_has_the_reference_of_a_wrong_answer_and_what_scoring_took(viewer: Client, group: Group) -> None:
    sample = group.samples.get(index=1)
    sample.components["answer"] |= {"detail": "128", "seconds": 0.25, "tries": 3}
    sample.save()
    page = words(page_of(viewer, group, fold="off"))
    assert "failed: answer 0 128 reference 127 250 ms 3 tries" in page
    assert page.count("reference 127") == 1, "not of a right one"


def test_two_completions_are_compared_word_by_word(viewer: Client, group: Group) -> None:
    page = page_of(viewer, group, first=1, second=2)
    assert "&lt;think&gt;<del>a</del><ins>b</ins>&lt;/think&gt;&lt;answer&gt;<del>1</del><ins>2</ins>&lt;" in page
    assert "Their texts are the same" in page_of(viewer, group, first=1, second=4)
    for first, second in ((1, 6), (0, 1), ("x", 1)):
        assert 'id="difference"' not in page_of(viewer, group, first=first, second=second)


def test_the_difference_of_texts_is_the_texts() -> None:
    first, second = "the cat sat", "the dog sat down"
    pieces, cut = difference(first, second)
    assert [(piece.kind, piece.text) for piece in pieces] == [
        *(("both", "the "), ("first", "cat"), ("second", "dog"), ("both", " sat"), ("second", " down"))
    ]
    assert cut is False
    long, cut = difference("a " * LONGEST_COMPARED, "b")
    assert (cut, len(long[0].text)) == (True, LONGEST_COMPARED), "half of it words, half spaces"


@pytest.mark.parametrize(
    ("completion", "prompt", "parts"),
    [
        ("<think>a</think>b", "", [("reasoning", "a", ""), ("text", "b", "")]),
        ("x<think>a</think> <answer>b</answer>c", "",
         [("text", "x", ""), ("reasoning", "a", ""), ("text", " ", ""), ("answer", "b", ""), ("text", "c", "")]),
        ("<think>a<answer>b</answer>", "", [("reasoning", "a<answer>b</answer>", "never closed")]),
        ("a</think>b", "", [("reasoning", "a", "</think> closes what was never opened"), ("text", "b", "")]),
        ("a</think>b", "Q <think>\n", [("reasoning", "a", ""), ("text", "b", "")]),
        ("a", "Q <think>\n", [("reasoning", "a", "never closed")]),
        ("<think>a<think>b</think>c</think>", "", [("reasoning", "a<think>b", ""), ("text", "c</think>", "")]),
        ("<answer>1</answer><answer>2</answer>", "", [("text", "<answer>1</answer>", ""), ("answer", "2", "")]),
        ("<answer>1", "", [("answer", "1", "never closed")]),
        ("", "", []),
    ],
)  # fmt: skip
def test_reasoning_and_answer_are_parts(completion: str, prompt: str, parts: list[tuple[str, str, str]]) -> None:
    split = completion_parts(completion, ReasoningTags(), prompt=prompt)
    assert [(part.kind, part.text, part.note) for part in split] == parts
    assert "".join(part.opening + part.text + part.closing for part in split) == completion


def test_the_tags_are_those_that_the_reward_asks_for(viewer: Client, group: Group) -> None:
    parts = completion_parts("<plan>a</plan><out>b</out>", ReasoningTags("plan", "out"))
    assert [part.kind for part in parts] == ["reasoning", "answer"]


def test_parts_are_cut_by_the_size_of_the_group() -> None:
    assert (shown_characters(1), shown_characters(64), shown_characters(10_000)) == (LONGEST_PART, 1000, 500)
    part = completion_parts("x" * 5000, ReasoningTags(), most=500)[0]
    assert (len(part.text), part.length, part.cut) == (500, 5000, True)


CHATML = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n"
LLAMA = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|>"
GEMMA = "<bos><start_of_turn>user\n1+1?<end_of_turn>\n<start_of_turn>model\n"


@pytest.mark.parametrize(
    ("prompt", "roles"),
    [(CHATML, ["system", "user", "assistant"]), (LLAMA, ["", "user"]), (GEMMA, ["", "user", "model"]), ("1+1?", [""])],
)
def test_a_prompt_in_a_chat_template_is_shown_by_turns(prompt: str, roles: list[str]) -> None:
    turns = prompt_turns(prompt)
    assert [turn.role for turn in turns] == roles
    assert question_of(turns) == "1+1?"


def test_the_question_heads_the_page_and_the_prompt_is_folded(viewer: Client, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0], prompt=CHATML)
    page = page_of(viewer, group)
    assert re.search(r"<h1[^>]*>1\+1\?</h1>", page)
    assert f"Whole prompt {num(len(CHATML))} characters, 3 turns" in words(page)
    assert ">1+1?</a>" in html(viewer.get(f"/p/ours/runs/{run.pk}/groups/"))


def test_markdown_and_formulas_are_rendered_where_they_can_be(viewer: Client, group: Group) -> None:
    for text, expected in (
        ("**b** `c`", "<p><strong>b</strong> <code>c</code></p>"),
        ("3. x\n7. y", '<ol>\n<li value="3">x</li>\n<li value="7">y</li>\n</ol>'),
        ("$5 and $6", "<p>$5 and $6</p>"),
        ("[a](http://x 't')", '<p>a <span class="muted">(http://x "t")</span></p>'),
        ("$\\left( x$", '<p><code class="formula">$\\left( x$</code></p>'),
        ("a\u200bb", '<p>a<span class="unseen" title="zero width space">\\u200b</span>b</p>'),
    ):
        assert (rendered(text) or "").strip() == expected
    assert "<mfrac>" in (rendered("$$\\frac{1}{2}$$") or "")
    assert rendered(">" * 100 + "x") is None
    sample = group.samples.get(index=0)
    sample.completion = "**bold**"
    sample.save()
    assert "<strong>bold</strong>" in page_of(viewer, group, view="rendered")
    assert "**bold**" in page_of(viewer, group)
