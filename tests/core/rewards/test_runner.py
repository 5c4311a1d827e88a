"""The runner holds open what a reward needs, closes it whatever happens, and tries again what no sample did."""

import psutil
import pytest

from grpo_core.config_reward import RewardConfig
from grpo_core.data import Problem
from grpo_core.errors import RewardError
from grpo_core.manifest import inputs_of
from grpo_core.records import ComponentScore, ErrorClass, Manifest
from grpo_core.rewards import KINDS, Rubric, Runner, Unscored
from grpo_core.rewards.kinds import Kind
from grpo_core.rewards.retries import with_retries
from grpo_core.rewards.rules import failed


class Scripted:
    """A scorer that fails each sample as often as its completion says, then gives 1."""

    def __init__(self, kind="infra"):
        self.kind = kind
        self.asked: list[list[str]] = []
        self.closed = 0

    def score(self, samples, check):
        check()
        before = [one for batch in self.asked for one in batch]
        self.asked.append([sample.completion for sample in samples])
        return [
            failed(self.kind, "gone")
            if before.count(sample.completion) < int(sample.completion)
            else ComponentScore(value=1.0, passed=True, detail=sample.completion)
            for sample in samples
        ]

    def facts(self):
        return {"batches": len(self.asked)}

    def close(self):
        self.closed += 1


@pytest.fixture
def opening(monkeypatch):
    """Puts scorers in the place of the kinds that are named, or an error to raise when one is opened."""

    def install(place="sandbox", **opened):
        def open_kind(self, params, context):
            found = opened[self.module]
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(Kind, "open", open_kind)
        monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
        for name in opened:
            monkeypatch.setitem(KINDS, name, Kind(KINDS[name].params, place, name, "told"))  # type: ignore[index,misc]

    return install


def runner(*kinds, retries=2, on_error="mask"):
    components = [{"name": kind, "kind": kind} for kind in kinds]
    given = {"components": components, "limits": {"retries": retries}, "on_error": on_error}
    return Runner(Rubric(RewardConfig.model_validate(given)))


def samples(*completions):
    return [Unscored(Problem(f"p{n}", "q", "7"), one) for n, one in enumerate(completions)]


def test_only_samples_with_trouble_are_tried_again_and_their_tries_counted(opening):
    told = Scripted()
    opening(exact=told)
    with runner("exact", retries=2) as scoring:
        scored = [one.components["exact"] for one in scoring.score(samples("0", "1", "2", "3"))]
    assert [one.tries for one in scored] == [1, 2, 3, 3]
    assert [one.error_class for one in scored] == [None, None, None, "infra"]
    assert told.asked == [["0", "1", "2", "3"], ["1", "2", "3"], ["2", "3"]]
    assert [one.detail for one in scored] == ["0", "1", "2", ""]


OWN: tuple[ErrorClass, ...] = ("verifier", "timeout", "memory", "output", "value", "sample", "budget")


@pytest.mark.parametrize(
    ("kind", "place"), [*((kind, "sandbox") for kind in OWN), ("infra", "judge"), ("infra", "model")]
)
def test_what_is_the_samples_own_or_tried_again_by_its_scorer_is_asked_once(opening, kind, place):
    scorer = Scripted(kind)
    opening(place, exact=scorer)
    with runner("exact") as scoring:
        assert scoring.score(samples("1"))[0].reward is None
    assert scorer.asked == [["1"]]


@pytest.mark.parametrize(
    ("kind", "on_error", "reward"),
    [("infra", "zero", None), ("infra", "mask", None), ("budget", "zero", None), ("timeout", "zero", 0.0)],
)
def test_trouble_that_is_not_the_samples_own_is_never_paid_0(opening, kind, on_error, reward):
    """Not beside a rule that scores, and not beside trouble that is the sample's own."""
    opening(exact=Scripted(kind), numeric=Scripted("timeout"))
    for beside in ("r1_format", "numeric"):
        with runner("exact", beside, on_error=on_error) as scoring:
            assert scoring.score(samples("99"))[0].reward == reward


def test_with_fail_lasting_trouble_ends_the_run(opening):
    opening(exact=Scripted())
    with (
        runner("exact", on_error="fail") as scoring,
        pytest.raises(RewardError, match="'exact' failed on problem p0: gone"),
    ):
        scoring.score(samples("99"))


def test_what_was_opened_is_closed_when_another_cannot_be(opening):
    first = Scripted()
    opening(exact=first, numeric=RewardError("no"))
    with pytest.raises(RewardError, match="no"):
        runner("exact", "numeric")
    assert first.closed == 1


def test_all_are_closed_once_also_where_one_fails_to_close(opening):
    class Stuck(Scripted):
        def close(self):
            super().close()
            raise OSError("stuck")

    first, second, third = Scripted(), Stuck(), Scripted()
    opening(exact=first, numeric=second, r1_format=third)
    scoring = runner("exact", "numeric", "r1_format")
    assert scoring.facts() == {name: {"batches": 0} for name in ("exact", "numeric", "r1_format")}
    with pytest.raises(OSError, match="stuck"):
        scoring.close()
    scoring.close()
    assert [one.closed for one in (first, second, third)] == [1, 1, 1]


def test_a_wish_to_stop_is_met_while_it_waits_to_try_again():
    looks = iter(range(3))

    def check():
        if next(looks, None) is None:
            raise KeyboardInterrupt

    def attempt(some):
        asked.append(len(some))
        return [failed("infra", "gone") for _ in some]

    asked: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        with_retries(samples("1"), attempt, retries=50, check=check)
    assert 1 <= len(asked) <= 4


def test_no_sample_is_no_work():
    with runner("exact") as scoring:
        assert scoring.score([]) == []
    component = {"name": "mine", "kind": "python", "params": {"source": "def verify(sample):\n    return 1"}}
    with Runner(Rubric(RewardConfig.model_validate({"components": [component]}))) as scoring:
        assert scoring.score([]) == []


def test_rules_that_run_here_and_aside_give_one_reward():
    """The kind math runs in processes of its own, beside exact, which does not."""
    components = [
        {"name": "same", "kind": "math", "weight": 2.0, "params": {"extract": "boxed"}},
        {"name": "literal", "kind": "exact", "params": {"extract": "whole"}},
    ]
    problem = Problem("p", "q", r"\frac{1}{2}")
    with Runner(Rubric(RewardConfig.model_validate({"components": components}))) as scoring:
        given = [r"\boxed{0.5}", r"\frac{1}{2}", r"\boxed{\frac{2}{4}}", "7"]
        scored = scoring.score([Unscored(problem, one) for one in given])
        beside = scoring._pool.processes()
    assert beside
    assert not any(psutil.pid_exists(pid) for pid in beside)
    assert [one.components["literal"].value for one in scored] == [0, 1, 0, 0]
    assert [one.components["same"].value for one in scored][0::2] == [1, 1]
    assert [one.reward for one in scored][0::2] == [2, 2]


def test_a_run_goes_on_only_with_the_reward_models_that_it_began_with():
    model = {"weights_sha256": "w1", "settings_sha256": "s1", "tokenizer_sha256": "t1", "texts": 3}
    manifest = Manifest(
        **{name: {} for name in ("code", "packages", "platform", "seeds")},
        model={"weights": {}, "settings_sha256": "s", "tokenizer_sha256": "t"},
        data={"train": {"problems_digest": "d"}, "eval": None, "suites": {}},
        config_digest="c",
        reward={"rm": model, "mine": {"source_sha256": "x"}},  # the latter is part of the config's digest
    )
    found = {name: value for name, value in inputs_of(manifest).items() if "reward" in name}
    assert sorted(found.values()) == ["s1", "t1", "w1"]
    assert all("rm" in name for name in found)
