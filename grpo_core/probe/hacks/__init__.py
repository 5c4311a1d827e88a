"""Completions that try to be rewarded by a judge of code without solving anything. A sound judge rewards none of them.

    for hack in HACKS:                          # all of them, in a fixed order: .name .group .what
        completion = hack.make(problem)         # prose and one fenced block of Python; None: not for this form of cases
        completion = hack.make(problem, tests=params.tests, entry_point=params.entry_point)  # with the kind's settings

`target_of(problem)` is what a hack may know of it: the name that the tests call and the form of the cases
(`grpo_core.rewards.code.cases`); a hack makes sense where the form is one of `hack.forms`. `hack.completion(target)` is
the text, `hack.code(target)` the program without prose and fence. Each hack was seen to fool a judge that is built the
usual way (tests/core/rewards/test_code_hacks.py); a hack is beaten when the sample earns 0 and is not
masked. Nothing here holds an answer to any problem: where a value is needed, it is one that no test expects.

Text only: nothing in this module runs a hack, and none may be run outside the sandbox.
"""

from grpo_core.probe.hacks.base import Hack, Target, target_of
from grpo_core.probe.hacks.compare import COMPARE_HACKS
from grpo_core.probe.hacks.exit import EXIT_HACKS
from grpo_core.probe.hacks.forge import FORGE_HACKS
from grpo_core.probe.hacks.patch import PATCH_HACKS
from grpo_core.probe.hacks.read import READ_HACKS

__all__ = ["HACKS", "Hack", "Target", "target_of"]

HACKS: tuple[Hack, ...] = (*EXIT_HACKS, *COMPARE_HACKS, *PATCH_HACKS, *READ_HACKS, *FORGE_HACKS)
assert len({hack.name for hack in HACKS}) == len(HACKS)
