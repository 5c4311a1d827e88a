"""Answers that people judged, as classes of a probe."""

from grpo_core.data.problem import Problem
from grpo_core.probe.cases.judged import JudgedAnswer

from .probing import component, paid, probed, rubric_of

SUM = Problem("sum", "what is 49 + 78?", "127")


def classes(report):
    return {result.name: result for result in report.classes}


def test_a_wrong_answer_that_is_rewarded_blocks_and_a_right_one_that_is_not_is_named():
    rubric = rubric_of(component("numeric"))
    plain = probed(rubric, limit=5)
    assert (plain.verdict, "judged_wrong" in classes(plain)) == ("clean", False)
    judged = [
        JudgedAnswer(SUM, "<answer>127.0</answer>", right=False),
        JudgedAnswer(SUM, "<answer>128</answer>", right=False),
        JudgedAnswer(SUM, "<answer>a hundred and twenty-seven</answer>", right=True),
        JudgedAnswer(SUM, "<answer>127</answer>", right=True),
    ]
    report = probed(rubric, limit=5, judged=judged)
    wrong, right = classes(report)["judged_wrong"], classes(report)["judged_right"]
    assert (report.verdict, report.pays_wrong) == ("pays_wrong", ("judged_wrong",))
    assert (wrong.n, wrong.paid, wrong.held, right.n, right.paid) == (2, 1, True, 2, 1)
    assert [example.completion for example in wrong.examples] == ["<answer>127.0</answer>"]
    assert "judged_right" in report.rejects
    assert report.calibration == plain.calibration, "they change nothing of what counts as rewarded"
    assert paid(report) == paid(plain) | {"judged_wrong"}


def test_judged_answers_that_the_reward_treats_as_people_do_change_no_verdict():
    judged = [JudgedAnswer(SUM, f"<answer>{number}</answer>", right=number == 127) for number in (127, 12)]
    report = probed(rubric_of(component("numeric")), limit=5, judged=judged)
    assert (report.verdict, classes(report)["judged_wrong"].paid) == ("clean", 0)


def test_one_whose_problem_the_reward_cannot_read_is_left_out_and_said_so():
    judged = [JudgedAnswer(Problem("words", "say hello", ""), "hello", right=True)]
    report = probed(rubric_of(component("numeric")), limit=5, judged=judged)
    assert "judged_right" not in classes(report)
    assert any("a judged sample is left out" in reason for reason in report.reasons)
