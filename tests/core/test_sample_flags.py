"""What a trainer flags of the samples it keeps: each rule against texts that are and are not so."""

import pytest

from grpo_core.config.reward import RewardConfig
from grpo_core.records.types import ComponentScore, Group, Sample
from grpo_core.rewards.flags import flagged, has_reasoning

REWARD = RewardConfig.model_validate(
    {
        "components": [
            {"name": "form", "kind": "r1_format", "weight": 0.5},
            {"name": "answer", "kind": "exact", "weight": 1.0},
        ]
    }
)
PROMPT = "How many apples are in the basket when Anna has put seven of them into it?"
REASONED = "<think>There are seven apples in it because she put seven in</think><answer>7</answer>"


def flags_of(*texts: str, prompt: str = PROMPT, form: float = 1.0, answer: float | None = 1.0) -> list[tuple[str, ...]]:
    scores = {
        "form": ComponentScore(value=form, passed=form == 1),
        "answer": ComponentScore(
            value=answer, passed=None if answer is None else answer == 1, error="broke" if answer is None else None
        ),
    }
    reward = None if answer is None else 0.5 * form + answer
    samples = tuple(
        Sample(
            index=index, completion=text, tokens=9, finish_reason="eos", reward=reward, components=scores, advantage=0.0
        )
        for index, text in enumerate(texts)
    )
    group = Group(
        step=1, index=0, problem_id="p", prompt=prompt, answer="7", reward_mean=None, reward_std=None, signal="mixed",
        samples=samples,
    )  # fmt: skip
    return [sample.flags for sample in flagged(group, REWARD).samples]


@pytest.mark.parametrize(
    ("completion", "has"),
    [
        (REASONED, True),
        ("<think></think><answer>7</answer>", False),
        ("<think>Well, seven.</think><answer>7</answer>", False),
        ("put seven in, so seven</think>7", True),
        ("She put seven of them into it, so \\boxed{7}", True),
        ("\\boxed{7} since there are seven apples in the basket", False),
        ("There are 3 + 4 = 7 apples\n#### 7", True),
        ("#### 7", False),
        ("7", False),
        ("", False),
    ],
)
def test_reasoning_is_words_before_the_answer(completion: str, has: bool) -> None:
    assert has_reasoning(completion) is has


def test_only_what_is_rewarded_is_flagged_for_its_reasoning() -> None:
    assert flags_of("<answer>7</answer>") == [("no_reasoning",)]
    assert flags_of("<answer>7</answer>", form=0.0, answer=0.0) == [()]
    assert flags_of("<answer>7</answer>", answer=None) == [()]
    assert flags_of(REASONED) == [()]


def test_format_only_is_a_reward_without_the_component_that_means_right() -> None:
    assert flags_of(REASONED, answer=0.0) == [("format_only",)]
    assert flags_of(REASONED, answer=0.4) == [()], "partly right is no form"
    assert flags_of(REASONED, form=0.0, answer=0.0) == [()], "not rewarded"


def test_a_near_duplicate_is_the_later_of_two() -> None:
    words = [f"word{number}" for number in range(60)]
    other = [*words[:30], "else", *words[31:]]
    long = " ".join(words)
    assert flags_of(long, long.upper() + " !") == [(), ("near_duplicate",)]
    # 58 trigrams, 3 of them changed: 55 of 61 shared is 0.902, and with a second change 52 of 64 is 0.81.
    assert flags_of(long, " ".join(other)) == [(), ("near_duplicate",)]
    assert flags_of(long, " ".join([*other[:10], "more", *other[11:]])) == [(), ()]
    assert flags_of("", "", answer=0.0, form=0.0) == [(), ("near_duplicate",)]


def test_a_language_switch_is_away_from_the_prompt_s() -> None:
    german = "<think>Anna hat sieben davon in den Korb gelegt und das ist die Zahl</think><answer>7</answer>"
    assert flags_of(german) == [("language_switch",)]
    assert flags_of(german, prompt="Wie viele Äpfel sind in dem Korb, wenn Anna sieben davon hineingelegt hat?") == [()]
    assert flags_of(german, prompt="7 * 6 = ?") == [()], "the prompt has no language"
    assert flags_of("<think>" + "苹果" * 30 + "</think><answer>7</answer>")[0][-1:] == ("language_switch",)
