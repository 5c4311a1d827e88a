"""What is watched while a run trains: each monitor raised and not raised by hand-made steps, and by one real run."""

import math

import pytest

from grpo_core.config.run import RunConfig
from grpo_core.monitors.base import Evidence
from grpo_core.monitors.figures import LengthCorrelation, Share, deviations, gain, repeated, share_gain, variance_shares
from grpo_core.monitors.history import KEPT, WINDOW, History, StepRow
from grpo_core.monitors.table import ALARMS, BY_CODE, MONITORS, title_of
from grpo_core.trainer.checkpoints.state import read_state

from .runs import KILLED, LETTERS, Setting, metrics_of, outcome_of, rows, train_here, write_problems
from .tiny import config

CORRECT = {"name": "correct", "kind": "exact", "weight": 0.2, "params": {"extract": "whole"}}
LENGTH = {"name": "long", "kind": "length", "weight": 0.8, "params": {"least": 8, "most": 8, "limit": 9}}
TWO = {"reward": {"components": [CORRECT, LENGTH], "success": "correct"}}
DURING = {"eval": {"path": "heldout.jsonl", "before": True, "after": False, "every": 10}}


def history(**series: list[float]) -> History:
    """One value a step, by metric."""
    made = History()
    for step, values in enumerate(zip(*series.values(), strict=True), start=1):
        metrics = dict(zip((name.replace("__", "/") for name in series), values, strict=True))
        made = made.add(StepRow(step=step, metrics=metrics))
    return made


def says(code: str, past: History, **parts: object) -> str:
    given = config(**parts) if parts else config()
    return BY_CODE[code].says(Evidence({}, given, metrics=past.newest[-1].metrics, history=past))


def wavy(level: float, steps: int, size: float = 0.01) -> list[float]:
    return [level + size * (-1) ** step for step in range(steps)]


def scored(past: History, before: float, after: float, *, suite: str = "heldout", half: float = 0.05) -> History:
    """With an evaluation before and one now, each ± `half`."""
    names = [f"eval/{suite}/{part}" for part in ("score", "low", "high")]
    past = past.evaluated_before(dict(zip(names, (before, before - half, before + half), strict=True)))
    row = past.newest[-1]
    metrics = {**past.newest[-2].metrics, **dict(zip(names, (after, after - half, after + half), strict=True))}
    return past.add(StepRow(step=row.step + 1, metrics=metrics))


# ---------------------------------------------------------------------- figures


def test_gains_by_hand() -> None:
    # variances 1 and 1 of n−1, standard error √(1/3 + 1/3), times 3
    rise = gain([1, 2, 3], [5, 6, 7])
    assert (rise.before, rise.after, rise.difference) == (2, 6, 4)
    assert (rise.low, rise.high) == (pytest.approx(4 - math.sqrt(6)), pytest.approx(4 + math.sqrt(6)))
    # Newcombe: 0.4 − √(0.1² + 0.2²), 0.4 + √(0.3² + 0.05²)
    change = share_gain(Share(0.2, 0.15, 0.4), Share(0.6, 0.5, 0.9))
    assert change.low == pytest.approx(0.4 - math.sqrt(0.05))
    assert change.high == pytest.approx(0.4 + math.sqrt(0.0925))
    assert deviations(7, [1, 2, 3, 4, 5]) == 4, "median 3, median deviation 1"
    assert deviations(7, [1, 1, 1, 5]) is None


def test_shares_of_the_variance_by_hand() -> None:
    # rewards 1.5, 0.5, 0, 0 about ½: squares 1 + 0 + ¼ + ¼; right: ½·1 + 0 + …
    group = [{"right": 1.0, "form": 0.5}, {"right": 0.0, "form": 0.5}, {"right": 0.0}, {"right": 0.0, "form": 0.0}]
    shares = variance_shares([group, [{"right": 1.0}, {"right": 1.0}]])
    # right: mean ¼: ¾·1 − ¼·0 + ¼·½ + ¼·½ = 1; form: mean ¼: ¼·1 + ¼·0 + ¼·½ + ¼·½ = ½; together 1.5
    assert shares == {"right": pytest.approx(1 / 1.5), "form": pytest.approx(0.5 / 1.5)}
    assert variance_shares([[{"right": 1.0}, {"right": 1.0}]]) == {}


def test_repeated_and_correlated_by_hand() -> None:
    assert (repeated(["a", "b", "a", "a"]), repeated(["a", "b"]), repeated([])) == (3, 0, 0)
    lengths = LengthCorrelation()
    lengths.add([1, 2, 3, 4], [1, 3, 2, 4])  # 0.8
    lengths.add([0, 0, 1, 1, None], [4, 3, 2, 1, 9])  # −4 / √20 of four
    lengths.add([1, 1, 1, 1], [1, 2, 3, 4])
    lengths.add([1, 2, 3], [1, 2, 3])
    assert lengths.rho == pytest.approx((0.8 - 4 / math.sqrt(20)) / 2)


def test_a_history_keeps_the_first_and_the_newest_steps() -> None:
    past = history(reward=[float(step) for step in range(1, 101)], loss=[0.0] * 100)
    assert [row.step for row in past.first] == list(range(1, WINDOW + 1))
    assert [row.step for row in past.newest] == list(range(101 - KEPT, 101))
    assert past.newest[-1].metrics == {"reward": 100.0}, "loss is read by no monitor"
    assert past.apart
    assert not history(reward=[0.0] * 19).apart
    counted = History()
    for step in range(1, 31):
        counted = counted.add(StepRow(step=step, metrics={}, sums={"samples": step}))
    assert counted.sums() == {"samples": sum(range(21, 31))}
    assert [bool(row.sums) for row in counted.newest] == [False] * 20 + [True] * 10
    assert History.model_validate_json(past.model_dump_json()) == past


# ---------------------------------------------------------------------- monitors


def test_reward_without_success() -> None:
    reward = wavy(0.2, 15) + wavy(0.6, 15)
    flat, along = wavy(0.1, 30), wavy(0.1, 15) + wavy(0.5, 15)
    assert says("reward_without_success", history(reward=reward, completions__right=flat), **TWO) == (
        "Suspect: the reward rose from 20 % to 60 % of its most, and correct went from 10 % to 10 %."
    )
    assert not says("reward_without_success", history(reward=reward, completions__right=along), **TWO)
    assert not says("reward_without_success", history(reward=flat, completions__right=flat), **TWO)
    early = history(reward=reward[6:25], completions__right=flat[6:25])
    assert not says("reward_without_success", early, **TWO)
    assert BY_CODE["reward_without_success"].figure(early, config(**TWO)).why == "comes with step 20"
    solved = wavy(0.95, 30)
    assert not says("reward_without_success", history(reward=reward, completions__right=solved), **TWO)
    alone = history(reward=reward, completions__right=flat)
    assert not says("reward_without_success", alone), "of one component the reward is its success"
    figure = BY_CODE["reward_without_success"].figure(history(reward=reward, completions__right=along), config(**TWO))
    assert figure.value == pytest.approx(1.0, abs=0.01)


def test_reward_without_heldout() -> None:
    rises = history(completions__right=wavy(0.1, 15) + wavy(0.9, 14))
    assert says("reward_without_heldout", scored(rises, 0.1, 0.2), **DURING) == (
        "Suspect: in training answer went from 10 % to 90 % of completions, and heldout from 10 % to 20 %."
    )
    assert not says("reward_without_heldout", scored(rises, 0.1, 0.8), **DURING)
    assert not says("reward_without_heldout", scored(rises, 0.1, 0.45), **DURING), "half of it, by the interval"
    assert not says("reward_without_heldout", scored(rises, 0.9, 0.9), **DURING), "it is where training is"
    assert not says("reward_without_heldout", scored(rises, 0.1, 0.1, half=0.4), **DURING), "too few problems to tell"
    flat = history(completions__right=wavy(0.1, 29))
    assert not says("reward_without_heldout", scored(flat, 0.1, 0.1), **DURING)
    assert not says("reward_without_heldout", scored(flat, 0.4, 0.1), **DURING), "it fell to where training is"
    even = history(completions__right=wavy(0.5, 29))
    assert says("reward_without_heldout", scored(even, 0.4, 0.1), **DURING), "it fell"
    assert not says("reward_without_heldout", scored(even, 0.2, 0.15), **DURING), "by chance"
    fell = history(completions__right=wavy(0.6, 15) + wavy(0.1, 14))
    assert not says("reward_without_heldout", scored(fell, 0.4, 0.1), **DURING), "so did training"
    figure = BY_CODE["reward_without_heldout"].figure(rises, config(**DURING))
    assert figure.why == "heldout has not been evaluated twice yet"
    assert "is not evaluated while training" in BY_CODE["reward_without_heldout"].figure(rises, config()).why


def test_the_evaluation_is_compared_with_the_steps_before_it() -> None:
    """Thirty steps after it the steps that it is compared with are still those."""
    past = scored(history(completions__right=wavy(0.1, 15) + wavy(0.9, 14)), 0.1, 0.2)
    for step in range(31, 71):
        past = past.add(StepRow(step=step, metrics={"completions/right": 0.1}))
    assert [row.step for row in past.trained] == list(range(21, 31))
    assert "to 90 % of completions" in says("reward_without_heldout", past, **DURING)


def test_a_component_dominates() -> None:
    shares = {"rewards__long__variance_share": [0.8] * 12, "rewards__correct__variance_share": [0.2] * 12}
    assert says("component_dominates", history(**shares), **TWO) == (
        "80 % of what rewards differ by within groups is long, not correct (the last 10 steps)."
    )
    swapped = {"rewards__long__variance_share": [0.2] * 12, "rewards__correct__variance_share": [0.8] * 12}
    assert not says("component_dominates", history(**swapped), **TWO)
    assert not says("component_dominates", history(**{name: values[:9] for name, values in shares.items()}), **TWO)


@pytest.mark.parametrize(
    ("after", "right", "raised"),
    [(40.0, 0.1, True), (13.0, 0.1, True), (25.0, 0.1, False), (40.0, 0.5, False), (40.0, 0.0, True)],
)
def test_length_drift(after: float, right: float, raised: bool) -> None:
    past = history(completions__mean_length=wavy(20, 15) + wavy(after, 15),
        completions__right=wavy(0.1, 15) + wavy(right, 15))  # fmt: skip
    assert bool(says("length_drift", past)) is raised
    assert BY_CODE["length_drift"].figure(past, config()).value == pytest.approx(after / 20)


@pytest.mark.parametrize(
    ("rho", "after", "text"),
    [
        (
            0.5,
            25,
            "longer completions are rewarded more (Spearman's ρ of reward and length 0.50 over the last 10 steps)",
        ),
        (-0.5, 15, "completions went from 20 to 15 tokens on average."),
        (0.5, 20, ""),
        (0.5, 15, ""),
        (0.2, 25, ""),
    ],
)
def test_length_bias_is_raised_where_lengths_follow(rho: float, after: float, text: str) -> None:
    lengths = wavy(20, 15) + wavy(after, 15)
    past = history(rewards__length_correlation=wavy(rho, 30), completions__mean_length=lengths)
    reported = says("length_bias", past)
    assert bool(reported) == bool(text)
    assert text in reported


@pytest.mark.parametrize(
    ("entropy", "right", "raised"), [(0.1, 0.1, True), (0.3, 0.1, False), (0.1, 0.6, False), (0.1, 0.0, True)]
)
def test_entropy_collapse(entropy: float, right: float, raised: bool) -> None:
    past = history(entropy=wavy(1.0, 15) + wavy(entropy, 15), completions__right=wavy(0.1, 15) + wavy(right, 15))
    assert bool(says("entropy_collapse", past)) is raised


def test_duplicates_count_what_is_not_right() -> None:
    assert "60 % of completions are wrong and equal" in says(
        "duplicates", history(completions__duplicates__wrong=[0.6] * 10)
    )
    assert not says("duplicates", history(completions__duplicates__wrong=[0.5] * 10))
    assert not says("duplicates", history(completions__duplicates__wrong=[0.9] * 9)), "ten steps"


def test_success_fell_from_its_best() -> None:
    risen = wavy(0.1, 15) + wavy(0.6, 15)
    assert "fell from 60 % in its best 10 steps to 20 %" in says(
        "success_fell", history(completions__right=risen + wavy(0.2, 10))
    )
    assert not says("success_fell", history(completions__right=risen + wavy(0.4, 10)))
    assert not says("success_fell", history(completions__right=wavy(0.02, 30) + wavy(0.0, 10, size=0.0)))


def test_spikes_are_never_of_tiny_values() -> None:
    calm = wavy(0.02, 20, size=0.001)
    assert not says("kl_spike", history(kl=[*calm, 0.04]))
    assert not says("gradient_spike", history(grad_norm=[*calm, 0.9])), "not clipped at 1"
    calm = wavy(0.2, 20, size=0.01)
    assert "The KL divergence was 0.9 at this step and 0.2 in the median of 20 before" in says(
        "kl_spike", history(kl=[*calm, 0.9])
    )
    assert says("gradient_spike", history(grad_norm=[*calm, 1.5]))
    assert not says("kl_spike", history(kl=[*calm, 0.5])), "under three times the median"
    assert not says("kl_spike", history(kl=[*calm[:9], 9.0])), "too few steps"
    assert not says("kl_spike", history(kl=[0.0] * 20 + [0.5])), "no spread to compare with"


def test_stall() -> None:
    assert says("stall", history(frac_informative=[0.5] + [0.0] * 20))
    assert not says("stall", history(frac_informative=[0.0] * 10 + [0.1] + [0.0] * 10))
    assert not says("stall", history(frac_informative=[0.0] * 19))


def test_every_monitor_is_declared_whole() -> None:
    assert len(BY_CODE) == len(MONITORS)
    given = RunConfig.from_dict({**config(**TWO).to_dict()})
    for monitor in MONITORS:
        assert monitor.title
        assert monitor.formula
        assert monitor.limit
        assert monitor.advice(given)
        assert monitor.drawn(given)
        figure = monitor.figure(History(), given)
        assert (figure.value is None) == bool(figure.why), monitor.code
        assert not monitor.says(Evidence({}, given)), f"{monitor.code} says nothing of nothing"
    assert "detected" not in " ".join(monitor.says.__doc__ or "" for monitor in MONITORS)
    assert BY_CODE.keys() > ALARMS
    assert title_of("cut_off") == "completions truncated"
    assert title_of("of_another_version") == "of another version"


# ---------------------------------------------------------------------- a real run


@pytest.fixture(scope="module")
def unreachable(home):
    write_problems(home / "unreachable.jsonl", [f"say {letter}" for letter in LETTERS], lambda prompt: "98765")
    return home


PLANTED = {
    **TWO,
    "data": {"path": "unreachable.jsonl"},
    "model": {"path": "ends"},
    "sampling": {"group_size": 8, "prompts_per_step": 4, "max_completion_tokens": 8},
    "algorithm": {"signal_gate": "reward"},
    "optim": {"steps": 26, "lr": 5e-3},
    "checkpoints": {"every": 13},
}


def events_of(out):
    kinds = ("diagnosis", "diagnosis_over")
    events = [row for row in rows(out / "events.jsonl") if row.get("type") in kinds]
    return [(row["type"], row["message"], row["data"]) for row in events]


def test_a_run_that_is_paid_for_length_raises_an_alarm_and_resumes_as_it_was(unreachable, tmp_path, capsys):
    """No answer is ever right; most of the reward is for eight tokens."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train_here(unreachable, whole, **PLANTED) == 0
    begun = {data["cause"]: data for kind, _, data in events_of(whole) if kind == "diagnosis"}
    alarm = begun["reward_without_success"]
    assert alarm["step"] >= 20
    assert alarm["text"].startswith("Suspect: the reward rose from ")
    assert alarm["metrics"] == ["reward", "rewards/correct/mean", "completions/right"]
    assert begun["component_dominates"]["step"] == 10
    assert f"step {alarm['step']}: Suspect: the reward rose" in capsys.readouterr().out
    assert "Suspected at the end: reward rises, success does not" in outcome_of(whole)["message"]
    (first, *_) = metrics_of(whole)
    assert first["rewards/long/variance_share"] == pytest.approx(1)
    assert first["completions/right"] == 0
    assert read_state(whole / "checkpoints/step-000026").history.newest[-1].step == 26

    run = Setting(unreachable, "planted", PLANTED)
    assert run.train(cut, fault="recorded:22") == KILLED
    assert run.train(cut, "--resume") == 0
    resumed = [event for event in events_of(cut) if event[0] != "resumed"]
    assert resumed == events_of(whole), "what held before the checkpoint of step 13 is not reported again"
    assert outcome_of(cut)["message"] == outcome_of(whole)["message"]
