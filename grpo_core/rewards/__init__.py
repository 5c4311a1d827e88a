"""Rewards: checkable rules, weighted into a rubric. Loads no torch; one file per kind."""

from grpo_core.rewards.rubric import KINDS, Rubric, Scored

__all__ = ["KINDS", "Rubric", "Scored"]
