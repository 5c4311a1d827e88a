"""What is kept of a step's completions: a hash of every one, and the texts of some groups, picked by seed."""

from collections.abc import Sequence

import numpy as np

from grpo_core.config.run import RunConfig
from grpo_core.records.commitments import commit
from grpo_core.records.types import Commitments, Group

_TRACES = 3  # name of a random stream; the others' stand in sampling.py and evaluate/task.py


def traces(
    step: int, trained: Sequence[Group], discarded: Sequence[Group], over: Sequence[Group], config: RunConfig
) -> list[Commitments | Group]:
    """The step's commitments, then the groups that are kept, in order. Nothing when nothing was sampled.

    Groups are numbered through: those trained on, those that dynamic sampling discarded, those held `over` for a later
    step. Those discarded are drawn apart, so that the same groups are kept whether any were discarded or not. Those
    held over are kept, if at all, by the step that trains on them.
    """
    every = [*trained, *discarded, *over]
    if not every:
        return []
    salted, commitments = commit(every)
    kept: list[Commitments | Group] = [commitments]
    ends = len(trained), len(trained) + len(discarded)
    for part, stream in ((salted[: ends[0]], ()), (salted[ends[0] : ends[1]], (1,))):
        places = kept_groups(len(part), config.traces.groups_per_step, config.seed, step, *stream)
        kept += [part[place] for place in places]
    return kept


def kept_groups(count: int, keep: int, seed: int, step: int, *stream: int) -> list[int]:
    """Which of a step's groups are kept with their texts: a draw by seed, in order of place."""
    if keep >= count:
        return list(range(count))
    return sorted(np.random.default_rng([seed, _TRACES, step, *stream]).choice(count, keep, replace=False).tolist())
