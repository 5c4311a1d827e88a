"""A rubric pays the weighted sum of its components, refuses bad parameters early, and never hides an error. Its runner
holds open what a reward needs, closes it whatever happens, and tries again what no sample did."""

import hashlib
from dataclasses import replace

import psutil
import pytest
from pydantic import ValidationError

from grpo_core.data import Problem
from grpo_core.errors import ConfigError, RewardError
from grpo_core.records.types import ComponentScore, Manifest
from grpo_core.rewards import KINDS, Runner, ScoreRequest
from grpo_core.rewards.base import Kind, Params
from grpo_core.rewards.kinds import exact
from grpo_core.rewards.runner import with_retries
from grpo_core.rewards.scoring import failed
from grpo_core.trainer.manifest import inputs_of

from .scoring import ONE, Stop, rubric_of, samples, stop_after

PROBLEM = Problem("p", "q", "82")


def test_weighted_sum_and_components():
    both = Runner(rubric_of({"kind": "r1_format", "weight": 0.25}, {"kind": "numeric", "weight": 2}))
    scored = both.score_one(PROBLEM, "<think>a</think><answer>82</answer>")
    assert scored.reward == 2.25
    assert scored.components["c1"].detail == "82"
    assert all(component.seconds > 0 for component in scored.components.values())
    assert both.score_one(PROBLEM, "<answer>82</answer>").reward == 2
    assert Runner(rubric_of({"kind": "exact", "weight": -1})).score_one(PROBLEM, "<answer>82</answer>").reward == -1


def test_every_wrong_parameter_is_listed_with_its_path():
    with pytest.raises(ConfigError) as caught:
        rubric_of({"kind": "exact", "params": {"extract": "tag"}}, {"kind": "numeric", "params": {"tolerence": 1}})
    paths = ["reward.components.0.params.extract", "reward.components.1.params.tolerence"]
    assert [problem.path for problem in caught.value.problems] == paths
    assert all(path in str(caught.value) for path in paths)


def test_digest_names_exactly_this_reward():
    # RFC 8785 of the reward; a decimal holds a number that no whole number may
    canonical = '{"components":[{"kind":"exact","name":"c0","params":{},"weight":1}],"on_error":"mask"}'
    assert rubric_of({"kind": "exact"}).digest == hashlib.sha256(canonical.encode()).hexdigest()
    assert rubric_of({"kind": "exact", "weight": 2}).digest != rubric_of({"kind": "exact"}).digest
    assert len(rubric_of({"kind": "numeric", "params": {"tolerance": 1e17}}).digest) == 64


@pytest.mark.parametrize("given", [ZeroDivisionError("division by zero"), float("nan"), float("inf"), None], ids=str)
def test_a_failed_component_decides_the_reward_and_keeps_its_reason(monkeypatch, given):
    def score(sample, params):
        if isinstance(given, Exception):
            raise given
        return ComponentScore.model_construct(value=given)

    monkeypatch.setattr(exact, "score", score)
    monkeypatch.setitem(KINDS, "exact", replace(KINDS["exact"], params=Params, module=exact.__name__))
    for on_error, reward in (("mask", None), ("zero", 0)):
        both = Runner(rubric_of({"kind": "exact"}, {"kind": "r1_format"}, on_error=on_error))
        scored = both.score_one(PROBLEM, "<think>a</think><answer>b</answer>")
        assert (scored.reward, scored.components["c0"].value, scored.components["c1"].value) == (reward, None, 1)
        assert str(given) in scored.components["c0"].error
    with pytest.raises(RewardError, match="'c0' failed on problem p"):
        Runner(rubric_of({"kind": "exact"}, on_error="fail")).score_one(PROBLEM, "x")


def test_reward_too_large_to_average_is_an_error():
    params = {"unit": "words", "shape": "cosine", "exceeded": -1e9, "limit": 1}
    scored = Runner(rubric_of({"kind": "length", "weight": 2, "params": params})).score_one(PROBLEM, "two words")
    assert scored.reward is None
    assert "which times the weight 2 is no number up to 1e+09" in scored.components["c0"].error


@pytest.mark.parametrize("weight", [2e9, -2e9, 1e308, float("nan")])
def test_a_weight_with_which_no_value_could_be_paid_is_refused(weight):
    with pytest.raises(ValidationError, match="weight"):
        rubric_of({"kind": "exact", "weight": weight})


# ---------------------------------------------------------------------- what is held open


class Scripted:
    """A scorer that fails each sample as often as its completion says, then gives 1."""

    def __init__(self, kind="infra", *, stuck=False):
        self.kind, self.stuck = kind, stuck
        self.batches: list[list[str]] = []
        self.closed = 0

    def score(self, samples, check):
        check()
        before = [text for batch in self.batches for text in batch]
        self.batches.append([sample.completion for sample in samples])
        return [
            failed(self.kind, "gone")
            if before.count(sample.completion) < int(sample.completion)
            else ComponentScore(value=1.0, passed=True, detail=sample.completion)
            for sample in samples
        ]

    def facts(self):
        return {"batches": len(self.batches)}

    def close(self):
        self.closed += 1
        if self.stuck:
            raise OSError("stuck")


@pytest.fixture
def opening(monkeypatch):
    """Puts scorers in the place of the kinds that are named, or an error to raise when one is opened."""

    def install(where="sandbox", **opened):
        def open_kind(self, params, context):
            scorer = opened[self.name]
            if isinstance(scorer, Exception):
                raise scorer
            return scorer

        monkeypatch.setattr(Kind, "open", open_kind)
        monkeypatch.setattr("grpo_core.rewards.runner.FIRST_PAUSE", 0.01)
        for name in opened:
            monkeypatch.setitem(KINDS, name, replace(KINDS[name], mode=where))

    return install


def runner(*kinds, **rest):
    return Runner(rubric_of(*({"name": kind, "kind": kind} for kind in kinds), **{"limits": {"retries": 2}, **rest}))


def test_only_samples_with_trouble_are_tried_again_and_their_tries_counted(opening):
    scorer = Scripted()
    opening(exact=scorer)
    with runner("exact") as scoring:
        scored = [result.components["exact"] for result in scoring.score(samples("0", "1", "2", "3"))]
    assert [result.tries for result in scored] == [1, 2, 3, 3]
    assert [result.error_class for result in scored] == [None, None, None, "infra"]
    assert scorer.batches == [["0", "1", "2", "3"], ["1", "2", "3"], ["2", "3"]]
    assert [result.detail for result in scored] == ["0", "1", "2", ""]


OWN = ("verifier", "timeout", "memory", "output", "value", "sample", "budget")


@pytest.mark.parametrize(
    ("kind", "place"), [*((kind, "sandbox") for kind in OWN), ("infra", "judge"), ("infra", "model")]
)
def test_what_is_the_samples_own_or_tried_again_by_its_scorer_is_asked_once(opening, kind, place):
    scorer = Scripted(kind)
    opening(place, exact=scorer)
    with runner("exact") as scoring:
        assert scoring.score(samples("1"))[0].reward is None
    assert scorer.batches == [["1"]]


@pytest.mark.parametrize(
    ("kind", "on_error", "reward"),
    [("infra", "zero", None), ("infra", "mask", None), ("budget", "zero", None), ("timeout", "zero", 0.0)],
)
def test_trouble_that_is_not_the_samples_own_is_never_paid_0(opening, kind, on_error, reward):
    """Not with a rule that scores, and not with trouble that is the sample's own. Lasting trouble ends a run that is to
    fail."""
    opening(exact=Scripted(kind), numeric=Scripted("timeout"))
    for other in ("r1_format", "numeric"):
        with runner("exact", other, on_error=on_error) as scoring:
            assert scoring.score(samples("99"))[0].reward == reward
    with (
        runner("exact", on_error="fail") as scoring,
        pytest.raises(RewardError, match="'exact' failed on problem p0: gone"),
    ):
        scoring.score(samples("99"))


def test_what_was_opened_is_closed_once_whatever_happens(opening):
    first = Scripted()
    opening(exact=first, numeric=RewardError("no"))
    with pytest.raises(RewardError, match="no"):
        runner("exact", "numeric")
    assert first.closed == 1
    scorers = {"exact": Scripted(), "numeric": Scripted(stuck=True), "r1_format": Scripted()}
    opening(**scorers)
    scoring = runner(*scorers)
    assert scoring.facts() == {name: {"batches": 0} for name in scorers}
    with pytest.raises(OSError, match="stuck"):
        scoring.close()
    scoring.close()
    assert [scorer.closed for scorer in scorers.values()] == [1, 1, 1]


def test_a_stop_is_met_while_it_waits_to_try_again():
    tries = []

    def attempt(samples):
        tries.append(len(samples))
        return [failed("infra", "gone") for _ in samples]

    with pytest.raises(Stop):
        with_retries(samples("1"), attempt, retries=50, check=stop_after(3))
    assert 1 <= len(tries) <= 4


def test_no_sample_is_no_work():
    for component in ({"kind": "exact"}, {"kind": "python", "params": {"source": ONE}}):
        with Runner(rubric_of(component)) as scoring:
            assert scoring.score([]) == []


def test_rules_that_run_here_and_aside_give_one_reward():
    """The kind math runs in processes of its own, exact does not."""
    same = {"kind": "math", "weight": 2.0, "params": {"extract": "boxed"}}
    problem = Problem("p", "q", r"\frac{1}{2}")
    with Runner(rubric_of(same, {"kind": "exact", "params": {"extract": "whole"}})) as scoring:
        texts = [r"\boxed{0.5}", r"\frac{1}{2}", r"\boxed{\frac{2}{4}}", "7"]
        scored = scoring.score([ScoreRequest(problem, text) for text in texts])
        pids = scoring._pool.processes()
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert [result.components["c1"].value for result in scored] == [0, 1, 0, 0]
    assert [result.components["c0"].value for result in scored][0::2] == [1, 1]
    assert [result.reward for result in scored][0::2] == [2, 2]


def test_a_run_goes_on_only_with_the_reward_models_that_it_began_with():
    model = {"weights_sha256": "w1", "settings_sha256": "s1", "tokenizer_sha256": "t1", "texts": 3}
    digest = "ab" * 32
    known = {"source": "base", "parameters": 1, "dtype": "float32"}
    lengths = {"min": 1, "mean": 1, "max": 1}
    train = {"sha256": digest, "problems": 1, "problems_digest": digest, "dropped": 0, "prompt_tokens": lengths}
    manifest = Manifest(
        **{name: {} for name in ("packages", "platform", "seeds")},
        code={"version": "0.1.0"},
        model={**known, "weights": {}, "settings_sha256": digest, "tokenizer_sha256": digest},
        data={"train": train, "eval": None, "suites": {}},
        config_digest=digest,
        reward={"rm": model, "mine": {"source_sha256": "x"}},  # the latter is part of the config's digest
    )
    inputs = {name: value for name, value in inputs_of(manifest).items() if "reward" in name}
    assert sorted(inputs.values()) == ["s1", "t1", "w1"]
    assert all("rm" in name for name in inputs)
