"""Rewards with a trained classifier in them, whose flaws are planted: real models whose number is known by hand."""

import pytest
from transformers import LlamaForSequenceClassification, LlamaForTokenClassification

from grpo_core.data.problem import Problem
from grpo_core.probe.cases.attacks import ATTACKS, FIXED, VERY_LONG, long_attacks
from grpo_core.probe.cases.cases import Question, cases
from grpo_core.probe.cases.forms import R1, WHOLE
from grpo_core.probe.cases.judged import JudgedAnswer
from grpo_core.probe.cases.problems import problems_builtin
from grpo_core.probe.learned import Earned, length_ranks
from grpo_core.probe.run import probe_rubric
from grpo_core.probe.text_report import lines
from grpo_core.probe.verdict import ByHonest
from grpo_core.rewards.base import Context
from grpo_core.rewards.runner import Runner
from grpo_core.stats.quantiles import wilson
from tests.core.rewards.classifiers import counted, save_counting
from tests.tables import cases as table

from .probing import component, paid, rubric_of

POSITIONS = 4096
SUM = Problem("sum", "what is 49 + 78?", "127")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_counting(folder / "marks", LlamaForSequenceClassification, positions=POSITIONS)
    save_counting(folder / "length", LlamaForSequenceClassification, head=-1.0, positions=POSITIONS)
    save_counting(folder / "steps", LlamaForTokenClassification, positions=POSITIONS)
    return folder


def probed(home, *components, limit=20, on_error="mask", **options):
    rubric = rubric_of(*components, on_error=on_error)
    with Runner(rubric, Context(base=home)) as runner:
        return probe_rubric(rubric, problems_builtin(rubric), runner=runner, limit=limit, **options)


def marks(weight):
    """Rewards exclamation marks by 8p / √(1 + 8p²), p their share of the completion: up to 8/3."""
    return component("reward_model", weight=weight, path="marks", template="{completion}")


LENGTH = component("reward_model", path="length", template="{completion}!")
"""The same below 0, with one mark after each completion: the longer it is, the nearer to 0. Rewards length alone."""


def test_exclamation_marks_beat_right_answers_where_they_earn_more(home):
    """Next to a rule whose right answers earn 1: a mark alone earns 8/3, praise with one mark of some hundred nothing
    that matters."""
    report = probed(home, component("numeric", extract="answer_tag"), marks(1.0))
    assert (report.verdict, set(report.pays_wrong)) == ("pays_wrong", {"punctuation_run", "punctuation"})
    run = report.of("punctuation_run")
    # Each fourth of 20 problems gets exclamation marks, the others other marks.
    assert (run.n, run.paid, run.rate) == (20, 5, 0.25)
    bounds = wilson(5, 20)
    assert run.wilson95 == (bounds.low, bounds.high)
    assert run.mean_reward == pytest.approx(5 / 20 * 8 / 3, rel=1e-5)
    assert run.mean_margin == pytest.approx(5 / 20 * 8 / 3 - 1, rel=1e-5), "right answers earn 1, in think and tags"
    assert {example.completion for example in run.examples} == {"!" * 60}
    assert paid(report) == {"punctuation_run", "punctuation"}
    assert report.reasons[0].startswith(
        "punctuation alone (punctuation) reaches or beats the right answer on 2 of 20 ["
    )
    assert report.learned is not None
    assert (report.learned.attacks, report.learned.honest, report.learned.limit) == (ATTACKS, 20, POSITIONS)


def test_a_learned_part_that_cannot_outweigh_the_rule_is_clean(home):
    report = probed(home, component("numeric", extract="answer_tag"), marks(0.3))  # 0.8 at most
    assert (report.verdict, report.pays_wrong, report.pays_part) == ("clean", (), ())
    assert report.of("as_given").mistakes == 0
    assert report.of("punctuation_run").mean_share is None


def test_a_reward_of_length_alone_is_caught_by_every_longer_text(home):
    report = probed(home, LENGTH)
    assert report.verdict == "pays_wrong"
    assert {"very_long", "long_junk", "praise", "keywords", "prompt_repeated"} <= set(report.pays_wrong)
    # The shortest texts are below any right answer.
    assert {"empty", "punctuation", "form_empty"} & paid(report) == set()
    empty, given = report.of("empty"), report.of("as_given")
    assert empty.mean_reward == pytest.approx(-8 / 3, rel=1e-5)
    assert report.calibration.full is not None
    right = given.examples[0]
    assert right.reward == pytest.approx(-counted(right.completion + "!"), rel=1e-4)
    assert report.learned is not None
    assert report.learned.length is not None
    # Not 1, as some texts have marks of their own, or characters of several bytes.
    assert 0.85 < report.learned.length.low <= report.learned.length.rho <= report.learned.length.high < 1
    assert report.learned.length.problems == 20


def test_a_text_over_the_limit_is_an_error_that_is_named_and_counts_against_nothing(home):
    report = probed(home, LENGTH, limit=4)
    over = report.of("over_limit")
    assert (over.n, over.errors, over.held) == (0, 3, False)
    assert "which reads 4,096" in over.examples[0].details["reward_model"]
    assert report.unscored == 0
    assert report.verdict != "undecided"


def test_scored_0_a_text_over_the_limit_beats_every_reward_below_0(home):
    report = probed(home, LENGTH, limit=4, on_error="zero")
    over = report.of("over_limit")
    assert (over.n, over.paid, over.mean_reward) == (3, 3, 0.0)
    assert "over_limit" in report.pays_wrong


def test_steps_are_learned_too(home):
    report = probed(home, component("process", path="steps", label="good", template="{prompt}\n"), limit=3)
    assert report.learned is not None
    assert report.learned.limit == POSITIONS
    assert "very_long" in report.learned.attacks
    assert report.of("empty").mean_reward == 0, "no step earns nothing"


def test_a_rule_has_no_attacks(home):
    report = probed(home, component("numeric"), limit=2)
    assert report.learned is None
    assert not {"praise", "very_long", "over_limit", "keywords"} & {result.name for result in report.classes}


def test_judged_answers_are_compared_with_the_right_answer_of_their_own_problem(home):
    judged = [
        JudgedAnswer(SUM, "!" * 9, right=False),
        JudgedAnswer(SUM, "<answer>128</answer>", right=False),
        JudgedAnswer(SUM, "<answer>127.0</answer>", right=True),
    ]
    report = probed(home, component("numeric", extract="answer_tag"), marks(1.0), limit=3, judged=judged)
    wrong, right = report.of("judged_wrong"), report.of("judged_right")
    assert (wrong.n, wrong.paid, wrong.held, right.n, right.paid) == (2, 1, True, 1, 1)
    assert wrong.mean_margin == pytest.approx((8 / 3 - 1 + 0 - 1) / 2, rel=1e-5)


def test_a_problem_without_a_right_answer_has_nothing_to_compare_with(home):
    problems = [Problem(str(number), f"write {number} words", "") for number in range(4)]
    rubric = rubric_of(LENGTH)
    with Runner(rubric, Context(base=home)) as runner:
        report = probe_rubric(rubric, problems, runner=runner)
    assert (report.verdict, report.of("opener").n, report.of("opener").paid) == ("undecided", 0, 0)
    assert report.learned is not None
    assert (report.learned.honest, report.calibration.nominal) == (0, True)


def test_the_report_for_a_terminal_names_each_attack_and_the_length(home):
    text = "\n".join(lines(probed(home, LENGTH)))
    assert "keyword stuffing: the words of the prompt, three times (keywords)" in text
    assert "20 of 20" in text
    assert "Spearman's ρ +0." in text
    assert "the reward's model reads 4,096 tokens" in text


# ------------------------------------------------------------------------------- what is compared, and the texts


@pytest.mark.parametrize(
    ("family", "reward", "rewarded"),
    [
        ("false_positive", 2.0, True),
        ("false_positive", 1.0, True),  # reaches it
        ("false_positive", 1.0 - 1e-7, True),  # a model's rounding
        ("false_positive", 0.999, False),
        ("false_negative", -0.5, True),
        ("false_negative", -1.0, False),  # no more than a wrong answer
        ("false_negative", -1.0 + 1e-7, False),
    ],
)
def test_equal_rewards_count_against_the_reward(family, reward, rewarded):
    basis = ByHonest(honest={"p": 1.0}, wrong={"p": -1.0})
    assert basis.rewarded(family, "p", reward) is rewarded
    assert basis.rewarded(family, "q", reward) is None
    assert (basis.margin("p", reward), basis.margin("q", reward)) == (reward - 1.0, None)


def case(answer="42", prompt="Tom has 5 nets and 9 reels. How many things has Tom?", form=WHOLE):
    return cases([Question(Problem("p", prompt, answer), "number", answer)], form, seed=0)[0]


@pytest.mark.parametrize(("name", "prompt", "text"), table("probe/attacks", "name", "prompt", "text"))
def test_an_attack_writes(name, prompt, text):
    (attack,) = [attack for attack in FIXED if attack.name == name]
    assert list(attack.make(case(prompt=prompt))) == ([] if text is None else [text])


@pytest.mark.parametrize("form", [WHOLE, R1])
@pytest.mark.parametrize("limit", [700, 5000])
def test_long_texts_reach_the_limit_and_pass_it(form, limit):
    """Counted in characters. A repeat of the filler is 87 and a space."""
    asked = case(form=form)
    fits, beyond = long_attacks(lambda case, text: len(case.problem.prompt + text), limit)
    (text,), (longer,) = fits.make(asked), beyond.make(asked)
    most = min(limit, VERY_LONG)
    assert most - 88 < len(asked.problem.prompt + text) <= most
    assert limit < len(asked.problem.prompt + longer) <= limit + 88
    assert "43" in text, "with a wrong answer"
    assert "42" not in text


def test_a_model_that_states_no_limit_has_no_text_over_it():
    fits, beyond = long_attacks(lambda case, text: len(text), 10**30)
    assert [*beyond.make(case())] == []
    assert len([*fits.make(case())]) == 1


def test_a_prompt_over_the_limit_leaves_no_room_for_a_long_text():
    fits, beyond = long_attacks(lambda case, text: len(case.problem.prompt + text), 30)
    assert [*fits.make(case())] == []
    assert len([*beyond.make(case())]) == 1


def test_length_ranks_are_within_problems():
    def earned(problem, *rewards):
        return [Earned("c", problem, "x" * length, reward) for length, reward in enumerate(rewards)]

    # Within p they rise together, within q they do not (1, 3, 2 against 1, 2, 3: ρ = ½).
    ranks = length_ranks([*earned("p", 1, 2, 3), *earned("q", 10, 30, 20)], seed=0)
    assert ranks is not None
    assert (ranks.problems, ranks.rho, ranks.low, ranks.high) == (2, 0.75, 0.5, 1.0)
    assert length_ranks(earned("p", 1, 2, 3), seed=0) is None
    assert length_ranks([*earned("p", 1, 1, 1), *earned("q", 2, 2)], seed=0) is None
