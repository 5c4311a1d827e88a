"""The page that compares runs, for its tests: its address, and runs to compare."""

from typing import Any

from cohort.runs.models import Run
from tests.factories.runs import Maker, add_evaluation, add_steps

PAGE = "/p/ours/runs/compare/"


def address(*runs: Run, part: str = "", **more: str) -> str:
    pairs = [*(f"run={run.pk}" for run in runs), *(f"{name}={value}" for name, value in more.items())]
    return f"{PAGE}{part}?{'&'.join(pairs)}"


def trained(maker: Maker, name: str, rewards: list[float], **settings: Any) -> Run:
    run = maker.run(name, state="training", **settings)
    add_steps(
        maker.attempt(run), [{"reward": reward, "num_tokens": 100.0 * step} for step, reward in enumerate(rewards, 1)]
    )
    return run


def evaluated(maker: Maker, name: str, after: list[float], **settings: Any) -> Run:
    run = maker.run(name, state="succeeded", **settings)
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "before", [0.0] * len(after), suite="heldout")
    add_evaluation(attempt, "after", after, suite="heldout")
    return run
