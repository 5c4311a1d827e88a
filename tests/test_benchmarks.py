"""What the benchmarks compute from their measurements, and that their settings are still accepted."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from grpo_core.draw import prompt_order

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks/sides"))

import cohort_grpo
import engine_growth
import gpu
import make_model
import memory_vs_ppo
import trl_learning
import trl_parity
from sides import beside, cohort_losses, loss_cases
from sides.work import REFERENCE, TINY, problems_of, reward

HERE = Path(trl_parity.__file__).parent
spec = importlib.util.spec_from_file_location("benchmark_beside_trl", HERE / "trl.py")
assert spec is not None
assert spec.loader is not None
trl = sys.modules["benchmark_beside_trl"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trl)
sys.path[:] = [  # its trl.py is not the package of that name
    folder for folder in sys.path if folder not in (str(HERE), str(HERE / "sides"))
]

END = 256
CASES = {case.name: case for case in loss_cases.cases()}


def factor(name: str, parts: list[list[int]]) -> float:
    case = CASES[name]
    return trl_parity.known_factor(case, loss_cases.rows(END, case.rewards), parts)


def test_completions_are_all_different_and_one_is_cut_off() -> None:
    rows = loss_cases.rows(END, "one")
    assert len({row.completion for row in rows}) == 16
    assert [row.completion[-1] == END for row in rows].count(False) == 1
    assert sum(len(row.completion) for row in rows) == 181


def test_known_factors() -> None:
    """181 tokens in 16 completions; completion 5 has 5 tokens; those of groups 0 and 1 have 96."""
    whole = [list(range(16))]
    assert factor("grpo β 0, 1 micro-batch", whole) == 1
    assert factor("grpo truncated left out", whole) == 15 / 16
    assert factor("dapo truncated left out", whole) == 1
    assert factor("dapo a reward missing", whole) == 176 / 181
    assert factor("dapo 2 optimiser steps per sampled batch", [[0, 1, 2, 3], [4, 5, 6, 7]]) == 96 / 90.5


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_settings_are_accepted(case: loss_cases.Case) -> None:
    settings = cohort_losses.run_config(case, [list(range(8)), list(range(8, 16))]).algorithm
    assert settings.std_ddof == 1
    assert settings.kl.coef == case.trl.get("beta", 0.0)


def test_parity_results_tell_the_worst_of_each_target() -> None:
    good = trl_parity.Compared(CASES["grpo β 0, 1 micro-batch"], 1.0, 1.0, 1.0, 1e-7, 2e-6, 0.0, 0.0, 0.0, 0.0)
    bad = replace(good, case=CASES["dapo β 0, 1 micro-batch"], loss=3e-5)
    assert trl_parity.results([good, bad, replace(good, gradient=4e-6)]) == [
        "RESULT trl_parity_grpo 4.0e-06 1e-05 ok",
        "RESULT trl_parity_dapo 3.0e-05 1e-05 miss",
    ]


def measured(models: float, above: float) -> dict[str, float]:
    sizes = {"weights": 1.0, "gradients": 1.0, "optimiser": 2.0, "seconds": 1.0}
    return {"models": models, "trained": 1.0, "baseline": 400.0, "peak": 400.0 + above, "above": above, **sizes}


def test_memory_saved_is_the_share_of_what_ppo_takes_above_the_start() -> None:
    ways = [measured(4, 1000), measured(3, 700), measured(2, 800), measured(2, 450)]
    told = memory_vs_ppo.report(dict(zip(memory_vs_ppo.WAYS, ways, strict=True)))
    assert told[-7:] == [
        "RESULT models_ppo 4 4 ok",
        "RESULT models_grpo_reward_model 3 3 ok",
        "RESULT models_grpo_verifier 2 2 ok",
        "RESULT models_grpo_verifier_no_kl 2 1 miss",
        "RESULT memory_saved_grpo_reward_model 0.30 0.25-0.50 ok",
        "RESULT memory_saved_grpo_verifier 0.20 0.25 miss",
        "RESULT memory_saved_grpo_verifier_no_kl 0.55 0.25 ok",
    ]


def test_more_saved_than_claimed_is_not_what_was_claimed() -> None:
    ways = [measured(4, 1000), measured(3, 400), measured(2, 300), measured(1, 200)]
    told = memory_vs_ppo.report(dict(zip(memory_vs_ppo.WAYS, ways, strict=True)))
    assert "RESULT memory_saved_grpo_reward_model 0.60 0.25-0.50 miss" in told


def test_medians_of_rounds() -> None:
    rounds = [{"models": 3.0, "trained": 1.0, "parameters": 9.0, "peak": p, "baseline": b} for p, b in
              ((10.0, 1.0), (30.0, 2.0), (20.0, 5.0))]  # fmt: skip
    told = memory_vs_ppo.medians(rounds)
    assert (told["peak"], told["baseline"], told["above"]) == (20.0, 2.0, 15.0)


# ---------------------------------------------------------------------- beside TRL


def test_forty_of_a_hundred_groups_have_no_variance_after_the_first_step() -> None:
    problems = problems_of(REFERENCE, HERE, 6)[8:]
    same = [problem["prompt"].startswith("0") for problem in problems]
    assert (sum(same), len(same)) == (16, 40)
    assert [sum(same[at : at + 8]) for at in range(0, 40, 8)] == [3, 3, 4, 3, 3]
    assert sorted({len(problem["prompt"]) for problem in problems}) == [64, 91, 119, 146, 174, 201, 229, 256]


def test_cohort_draws_the_problems_in_the_order_that_trl_takes() -> None:
    problems = problems_of(REFERENCE, HERE, 3)
    laid = cohort_grpo.in_order_of_drawing(problems, seed=5)
    assert laid != problems
    assert [laid[place] for place in islice(prompt_order(24, 5), 24)] == problems


def test_rewards_of_the_benchmark() -> None:
    assert (reward("abCD", "1777"), reward("abcD", "1777"), reward("abCD", "0777")) == (0.5, 0.75, 0.5)
    assert reward("abcD", "0777") == 0.5
    right = "<think>7+5=12</think><answer> 82 </answer>"
    assert (reward(right, "", "82", "addition"), reward(right, "", "8", "addition")) == (1.0, 0.0)
    assert reward("82", "", "82", "addition") == 0.0


def test_chance_of_ending_gives_the_mean_length() -> None:
    """With at most two tokens the mean is 1 + (1 − p)."""
    assert make_model.end_chance(1.5, 2) == pytest.approx(0.5, abs=1e-9)
    chance = make_model.end_chance(115.2, 256)
    assert sum((1 - chance) ** length for length in range(256)) == pytest.approx(115.2, abs=1e-6)


def test_a_digit_is_a_token_and_the_parameters_are_counted() -> None:
    tokenizer = make_model.tokenizer(512)
    assert len(tokenizer) == 512
    assert len(tokenizer("1" + "7" * 40)["input_ids"]) == 41
    model, _ = make_model.qwen2("qwen2-tiny", 512, 16, 0.45)
    assert sum(p.numel() for p in model.parameters()) == engine_growth.parameters(TINY)
    assert engine_growth.parameters(REFERENCE) == 22_028_928


def side(seconds: list[float], peak: float) -> beside.Side:
    figures = {name: [one / 2 for one in seconds] for name in ("sample", "update")}
    return beside.Side([{"seconds": seconds, "tokens": [640.0] * len(seconds), "peak_rss_gb": peak, **figures}])


def test_speed_and_memory_against_trl() -> None:
    told = {"beta_0": {beside.OURS: side([9.0, 10.0, 14.0], 2.0), beside.TRL: side([80.0, 90.0, 79.0], 5.0)}}
    lines = trl.report(trl.CASES, told)
    assert lines[-2:] == ["RESULT speed_beta_0 8.00 8 ok", "RESULT peak_memory_beta_0 0.40 0.35 miss"]
    assert lines[1].split()[:4] == ["beta_0", "Cohort", "10.00", "9.00"]


def test_growth_is_the_worst_size_against_the_smallest() -> None:
    works = {("group", size): replace(REFERENCE, group_size=size) for size in (4, 8, 16)}
    held = 16 * 22_028_928 / 2**30
    sides = {4: side([3.2], held + 1.0), 8: side([7.68], held + 0.9), 16: side([6.4], held + 1.05)}
    assert engine_growth.report({"group": sides}, works)[-2:] == [
        "RESULT growth_peak_memory_by_group 1.05 1.1 ok",
        "RESULT growth_sample_time_by_group 1.20 1.1 miss",
    ]


def test_arithmetic_of_an_update() -> None:
    """One layer of width 4 with one head, feed-forward 8: 16 + 16 + 16 + 16 weights in attention, 96 in between."""
    gpu.SHAPES["hand"] = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
                          "num_key_value_heads": 1, "intermediate_size": 8}  # fmt: skip
    work = replace(TINY, model="hand", prompts_per_step=1, group_size=2, prompt_tokens=(3, 3), vocabulary=10)
    assert gpu.update_flops(work, 8.0) == 6 * 11 * 160 + 12 * 11 * 4 * 5 + 6 * 8 * 10 * 4


def test_interval_of_paired_seeds() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, and t of two degrees is 4.3027."""
    mean, low, high = trl_learning.paired_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), abs=1e-4)


def test_learning_is_held_against_the_margin() -> None:
    curves = {beside.OURS: [[0.3, 0.5], [0.3, 0.51]], beside.TRL: [[0.3, 0.5], [0.3, 0.5]]}
    assert trl_learning.report(curves)[-1] == "RESULT learning_against_trl_low -0.029 -0.02 miss"


RUNS = {
    "trl": ["trl.py", "--ours", "--cases", "tiny", "--rounds", "1", "--profile"],
    "growth": ["engine_growth.py", "--small", "--rounds", "1", "--axes", "group"],
    "gpu": ["gpu.py", "--tiny", "--ours", "--steps", "1"],
}
SAID = {
    "trl": "PROFILE update",
    "growth": "RESULT growth_sample_time_by_group",
    "gpu": "RESULT gpu_update_share_of_rate",
}


@pytest.mark.parametrize("name", RUNS)
def test_benchmarks_run(name: str) -> None:
    """Cohort's side alone, at a size where only running is to be seen."""
    script, *words = RUNS[name]
    if name != "growth":
        words += ["--python", sys.executable]
    done = subprocess.run([sys.executable, HERE / script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert SAID[name] in done.stdout
