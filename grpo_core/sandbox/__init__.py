"""Runs untrusted programs (user-written verifiers, model-written code) where they can do no harm, and
refuses where that is not possible. Loads neither torch nor numpy, and changes nothing in the calling process."""

from grpo_core.sandbox.box import Box
from grpo_core.sandbox.choice import find_sandbox, self_test
from grpo_core.sandbox.limits import BoxEnded, BoxTimeout, End, Limits, Ran
from grpo_core.sandbox.report import Check, Level, Report
from grpo_core.sandbox.sandbox import Sandbox

__all__ = [
    "Box",
    "BoxEnded",
    "BoxTimeout",
    "Check",
    "End",
    "Level",
    "Limits",
    "Ran",
    "Report",
    "Sandbox",
    "find_sandbox",
    "self_test",
]
