"""The table of reward kinds, each declared by SPEC in its own file: every file of `kinds/` that has one, and those here
that have their own folder.

Importing it loads no torch and starts nothing; what is heavy is imported when a kind is first used.
"""

from grpo_core.rewards.base import Kind
from grpo_core.rewards.code import params as code
from grpo_core.rewards.judge import kind as judge
from grpo_core.rewards.models import process, reward_model
from grpo_core.rewards.python import gym, python_function
from grpo_core.specs.fields import specs_in

_IN_FOLDERS = (reward_model.SPEC, process.SPEC, judge.SPEC, python_function.SPEC, gym.SPEC, code.SPEC)
KINDS: dict[str, Kind] = {spec.name: spec for spec in (*specs_in("grpo_core.rewards.kinds", Kind), *_IN_FOLDERS)}
