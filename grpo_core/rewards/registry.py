"""The table of reward kinds, in the order of forms and docs; each is declared by SPEC in its own file.

Importing it loads no torch and starts nothing; what is heavy is imported when a kind is first used.
"""

from typing import get_args

from grpo_core.config.reward import RewardKind
from grpo_core.rewards.base import Kind
from grpo_core.rewards.code import params as code
from grpo_core.rewards.judge import kind as judge
from grpo_core.rewards.kinds import (
    choice,
    contains,
    equations,
    exact,
    function_call,
    json_schema,
    language,
    length,
    math,
    numeric,
    r1_format,
    refusal,
    regex,
    similarity,
    soft_overlong,
    tags,
)
from grpo_core.rewards.kinds import format as answer_format
from grpo_core.rewards.models import process, reward_model
from grpo_core.rewards.python import gym, python_function

_MODULES = (
    exact,
    numeric,
    r1_format,
    equations,
    math,
    choice,
    contains,
    similarity,
    function_call,
    refusal,
    tags,
    regex,
    json_schema,
    answer_format,
    length,
    soft_overlong,
    language,
    reward_model,
    process,
    judge,
    python_function,
    gym,
    code,
)

KINDS: dict[RewardKind, Kind] = {module.SPEC.name: module.SPEC for module in _MODULES}
assert set(KINDS) == set(get_args(RewardKind))
