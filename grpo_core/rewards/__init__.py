"""Rewards: kinds weighted into a rubric, and the runner that scores with it. Loads no torch; one file per kind."""

from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.registry import KINDS
from grpo_core.rewards.rubric import Rubric, Scored
from grpo_core.rewards.runner import Runner

__all__ = ["KINDS", "Rubric", "Runner", "ScoreRequest", "Scored"]
