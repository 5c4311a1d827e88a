"""The numbers of many steps as a real run reports them, written at once: for charts, which draw all of them."""

import math
import random
from collections.abc import Mapping
from datetime import timedelta

from django.utils import timezone

from cohort.runs.models import Attempt, StepMetric

SECONDS = 3.0
"""Wall time of every step."""


def step_numbers(step: int, chance: random.Random) -> dict[str, float]:
    """Of a run that learns slowly, with noise as groups of eight have it."""
    learned = 1 - math.exp(-step / 200)
    right, noise = 0.1 + 0.5 * learned, chance.gauss(0, 0.04)
    all_right, phantom, all_wrong = 0.3 * learned, 0.05, 0.4 * (1 - learned)
    return {
        "reward": right + noise + 0.1,
        "reward_std": 0.42 + noise / 4,
        "reward_group_std": 0.3 - 0.1 * learned,
        "rewards/answer/mean": right + noise,
        "rewards/format/mean": 0.5 + 0.4 * learned,
        "frac_informative": 1 - all_right - all_wrong - phantom,
        "frac_phantom": phantom,
        "frac_reward_zero_std": all_right + all_wrong,
        "frac_reward_zero_std/all_right": all_right,
        "frac_reward_zero_std/all_wrong": all_wrong,
        "frac_reward_zero_std/other": 0.0,
        "groups/all_right": all_right,
        "groups/all_wrong": all_wrong,
        "groups/mixed": 1 - all_right - all_wrong,
        "frac_unscored": 0.0,
        "reward_errors": 0.0,
        "masked/reward_error": 0.0,
        "masked/truncated": float(step % 3),
        "completions/mean_length": 120 + 40 * learned + 100 * noise,
        "completions/mean_length/right": 110 + 30 * learned,
        "completions/mean_length/wrong": 140 + 60 * learned,
        "completions/min_length": 20.0,
        "completions/max_length": 256.0,
        "completions/clipped_ratio": 0.05,
        "entropy": 0.9 * math.exp(-step / 300) + 0.2,
        "kl": 0.002 * learned + abs(noise) / 1000,
        "kl_per_completion": 0.2 * learned,
        "clip_ratio/low_mean": 0.0012 + abs(noise) / 100,
        "clip_ratio/high_mean": 0.0008 + abs(noise) / 100,
        "loss": noise / 100,
        "grad_norm": 0.3 + abs(noise),
        "learning_rate": 1e-6 * min(1.0, step / 20),
        "sampling/logp_difference/mean": 1e-3,
        "sampling/logp_difference/max": 0.02 + abs(noise),
        "sampling/importance_ratio/mean": 1.0,
        "sampling/importance_ratio/min": 0.97,
        "sampling/importance_ratio/max": 1.02 + abs(noise) / 4,
        "samples_per_second": 20 + 40 * abs(noise),
        "tokens_per_second/sample": 4000 + 9000 * noise,
        "tokens_per_second/update": 9000 + 9000 * noise,
        "memory/peak_bytes": 1.8e9,
        "num_tokens": 10_000.0 * step,
    }


def add_series(attempt: Attempt, steps: int, more: Mapping[int, Mapping[str, float]] | None = None) -> None:
    """So many steps, the first at the run's start, with `more` numbers at some of them."""
    run, chance, begun = attempt.run, random.Random(7), timezone.now() - timedelta(seconds=SECONDS * steps)
    spent = {"sample": 1.6, "reward": 0.2, "update": 1.0, "other": 0.2, "total": SECONDS}
    rows = [
        StepMetric(
            attempt=attempt,
            run=run,
            seq=attempt.acked_seq + step,
            step=step,
            at=begun + timedelta(seconds=SECONDS * step),
            metrics=step_numbers(step, chance) | dict((more or {}).get(step, {})),
            seconds=spent,
        )
        for step in range(1, steps + 1)
    ]
    StepMetric.objects.bulk_create(rows)
    attempt.acked_seq += steps
    attempt.save()
    run.step, run.started_at = steps, begun
    run.first_metrics, run.latest_metrics = rows[0].metrics, rows[-1].metrics
    run.save()
