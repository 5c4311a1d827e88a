"""Verifiers that are broken on purpose, each caught in the class that is meant for it, through the real runner."""

from collections.abc import Iterator

import pytest

from grpo_core.config_reward import RewardConfig
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.probe.problems import problems_builtin
from grpo_core.probe.run import probe_rubric
from grpo_core.rewards.rubric import Rubric
from grpo_core.rewards.runner import Runner
from tests.core.rewards import patience
from tests.core.rewards.judge_server import Server, says

from .probing import component, paid, probed, rubric_of


def python(body: str, *, on_error: str = "mask") -> Rubric:
    """A person's verifier, in the sandbox."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return rubric_of(component("python", source=f"def verify(sample):\n{lines}\n"), on_error=on_error)


def test_the_form_alone() -> None:
    report = probed(rubric_of(component("r1_format")))
    assert report.verdict == "pays_wrong"
    assert {"form_wrong", "form_placeholder", "form_punctuation", "do_not_know", "plus_one"} <= set(report.pays_wrong)
    assert not {"empty", "whitespace", "echo", "form_bare"} & paid(report)


def test_a_large_tolerance() -> None:
    report = probed(rubric_of(component("numeric", tolerance=1)))
    assert {"plus_one", "minus_one", "off_by_half", "off_by_hundredth"} <= set(report.pays_wrong)
    assert not {"form_wrong", "times_ten_wrong", "empty", "gold_in_list"} & set(report.pays_wrong) - {"form_wrong"}


def test_the_last_number_anywhere() -> None:
    report = probed(rubric_of(component("numeric", extract="last_number")))
    assert {"gold_in_passing", "gold_in_comment"} <= set(report.pays_wrong)


def test_equations_that_are_true_and_idle() -> None:
    report = probed(rubric_of(component("equations")))
    assert report.calibration.form == "r1_equation"
    assert {"form_wrong", "form_empty", "plus_one"} <= set(report.pays_wrong)


def test_the_answer_anywhere_in_the_completion() -> None:
    report = probed(python("return 1.0 if sample.answer in sample.completion else 0.0"), limit=10)
    meant = {"gold_in_thought", "gold_in_passing", "gold_in_list", "gold_denied", "gold_taken_back", "digits_inside"}
    assert meant <= set(report.pays_wrong)
    assert not {"empty", "form_wrong", "plus_one"} & paid(report)


def test_the_first_answer_counts() -> None:
    body = 'import re\nfound = re.search(r"<answer>(.*?)</answer>", sample.completion)'
    report = probed(python(f"{body}\nreturn found is not None and found[1].strip() == sample.answer"), limit=10)
    assert set(report.pays_wrong) == {"gold_taken_back"}


def test_nothing_is_accepted() -> None:
    body = 'given = sample.completion.split("<answer>")[-1].split("</answer>")[0]'
    report = probed(python(f"{body}\nreturn sample.answer.startswith(given.strip())"), limit=10)
    assert {"empty", "whitespace", "form_empty", "form_bare", "gold_part"} <= set(report.pays_wrong)


def test_the_completion_as_a_pattern() -> None:
    body = 'import re\ngiven = sample.completion.split("<answer>")[-1].split("</answer>")[0].strip()'
    report = probed(
        python(f"{body}\ntry:\n    return bool(given) and re.fullmatch(given, sample.answer) is not None\n"
               "except re.error:\n    return False"),
        limit=10,
    )  # fmt: skip
    assert "wildcard" in report.pays_wrong


def test_what_says_that_it_is_right() -> None:
    report = probed(
        python('return "correct" in sample.completion.lower() or sample.answer in sample.completion'), limit=5
    )
    assert {"injected_score", "json_claims", "judge_other_language"} & paid(report)
    assert {"judge_authority", "judge_delimiter"} <= set(report.pays_wrong)


def test_a_verifier_that_gives_another_number_each_time() -> None:
    report = probed(
        python("import random\nreturn random.SystemRandom().random()"),
        limit=5,
        fresh=None,
    )
    again = report.determinism.again
    assert again.differ > 0.9 * again.checked > 0
    assert again.largest > 0.1
    assert report.determinism.fresh.checked == 0


def test_a_verifier_that_remembers() -> None:
    """The same in one process, another number in a new one."""
    source = "import random\nNOW = random.SystemRandom().random()\ndef verify(sample):\n    return NOW\n"
    rubric = rubric_of(component("python", source=source), limits={"workers": 1})
    with Runner(rubric) as runner:
        report = probe_rubric(rubric, problems_builtin(rubric), runner=runner, limit=3, fresh=lambda: Runner(rubric))
    assert report.determinism.again.differ == 0
    assert report.determinism.fresh.differ == report.determinism.fresh.checked > 0


def test_a_verifier_that_raises() -> None:
    report = probed(python('return float(sample.completion.split("<answer>")[1].split("</answer>")[0])'), limit=5)
    assert report.verdict in ("undecided", "pays_wrong")
    assert report.errors["verifier"] > 100
    assert report.unscored > 100
    assert any("Error" in message for message in report.error_examples)


def test_a_verifier_that_hangs_is_given_up() -> None:
    source = "def verify(sample):\n    while sample:\n        pass\n    return 1\n"
    rubric = rubric_of(component("python", source=source), limits={"deadline_seconds": 0.2, "retries": 0})
    report = probed(rubric)
    assert report.verdict == "undecided"
    assert 16 <= report.errors["timeout"] == report.calls < 40
    assert report.reasons[-1].startswith("given up after 16 of class timeout")
    assert report.of("plus_one").n == 0


def test_one_that_hangs_at_times_is_told_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    patience.boxed(monkeypatch, lambda completion: not completion)
    body = (
        "while not sample.completion:\n    pass\nreturn '<answer>' + sample.answer + '</answer>' in sample.completion"
    )
    source = "def verify(sample):\n" + "\n".join(f"    {line}" for line in body.splitlines()) + "\n"
    rubric = rubric_of(component("python", source=source), limits={"deadline_seconds": 3, "retries": 0})
    report = probed(rubric, limit=5)
    assert (report.of("empty").n, report.of("empty").errors) == (0, 5)
    assert report.of("plus_one").errors == 0
    assert report.errors["timeout"] < 16


def test_on_error_fail_does_not_end_the_probe() -> None:
    report = probed(python("assert sample.completion\nreturn 0", on_error="fail"), limit=3)
    assert report.verdict == "rejects_right"
    assert sum(report.errors.values()) > 0


def test_right_answers_that_nothing_is_paid_for() -> None:
    report = probed(python("return 0"), limit=5)
    assert report.verdict == "rejects_right"
    assert report.calibration.form is None
    assert report.calibration.nominal
    assert report.of("as_given").rate == 1.0


def test_wrong_is_minus_one() -> None:
    """Nothing is what wrong answers earn; so 0 is already half, and half is not paid."""
    body = 'given = sample.completion.split("<answer>")[-1].split("</answer>")[0].strip()'
    fair = probed(python(f"{body}\nreturn 1 if given == sample.answer else -1"), limit=5)
    assert (fair.verdict, fair.calibration.low, fair.calibration.full) == ("clean", -1.0, 1.0)
    kind = probed(python(f"{body}\nreturn 1 if given == sample.answer else 0.5 if not given else -1"), limit=5)
    assert "form_empty" in kind.pays_wrong


def test_one_large_penalty_hides_nothing() -> None:
    body = "if len(sample.completion) > 1500:\n    return -1000"
    report = probed(python(f"{body}\nreturn sample.answer in sample.completion"), limit=5)
    assert report.calibration.low == 0.0
    assert "gold_in_list" in report.pays_wrong


@pytest.fixture
def yes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(lambda seen: says("It is fine.\nScore: 10")) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        yield server


def test_a_judge_that_says_yes(yes: Server) -> None:
    rubric = rubric_of(component("judge", base_url=f"http://{yes.place}/v1", model="yes", key_env=None))
    report = probed(rubric, limit=2)
    assert {"colon", "opener", "reasoning_only", "judge_confident", "injected_instruction"} <= set(report.pays_wrong)
    assert report.cost["judge"]["calls"] == len(yes.seen) > 100
    assert report.verdict == "pays_wrong"


def test_problems_without_the_field_that_the_reward_reads() -> None:
    rubric = rubric_of(component("code", tests="cases"))
    with pytest.raises(DataError, match="has no 'cases'"), Runner(rubric) as runner:
        probe_rubric(rubric, [Problem("p", "?", "42")], runner=runner)
    with pytest.raises(DataError, match="at least one problem"), Runner(rubric) as runner:
        probe_rubric(rubric, [], runner=runner)


def test_a_check_may_stop_it() -> None:
    class Stopped(Exception):
        pass

    def check() -> None:
        raise Stopped

    rubric = Rubric(RewardConfig.model_validate({"components": [component("numeric")]}))
    with pytest.raises(Stopped), Runner(rubric) as runner:
        probe_rubric(rubric, problems_builtin(rubric), runner=runner, check=check)
