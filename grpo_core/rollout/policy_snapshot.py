"""A copy of the policy that stays unchanged while another thread trains the original: a local sampler samples from it
with engine.one_step_off."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from pydantic import TypeAdapter

from grpo_core.config.kinds import AnyConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.model.load import LoadedModel
from grpo_core.rollout.base import Completion, Rollout, SamplingOptions

COMPLETIONS = TypeAdapter(list[list[Completion]])
"""Completions of some prompts as plain data, for the other ranks, and back."""


@dataclass(eq=False)
class WrappedRollout:
    """Passes everything on to another rollout."""

    own: Rollout

    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """See `base.Rollout`."""
        return self.own.generate(prompts, **options)

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`."""
        return self.own.follow(step)

    def close(self) -> None:
        self.own.close()


@dataclass(eq=False)
class RankedRollout(WrappedRollout):
    """A rollout of all ranks together. The random numbers of a prompt do not depend on which rank samples it."""

    ranks: Ranks

    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """See `base.Rollout`. Every rank must call it with the same arguments."""
        if self.ranks.world == 1:
            return super().generate(prompts, **options)
        indices, mine = options.get("indices") or range(len(prompts)), self.ranks.share(len(prompts))
        part: SamplingOptions = {**options, "indices": [indices[i] for i in mine]}
        groups = self.ranks.together(lambda: self.own.generate([prompts[i] for i in mine], **part) if mine else [])
        return COMPLETIONS.validate_python(self.ranks.spread(COMPLETIONS.dump_python(groups), len(prompts)))

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`. What goes wrong on one rank, such as weights that did not arrive, ends it on all."""
        return self.ranks.together(lambda: self.own.follow(step))


def snapshot_for(config: AnyConfig, policy: LoadedModel) -> LoadedModel | None:
    """The copy that the run's sampler draws from; None where it draws from the policy itself, or somewhere else. To be
    made of the policy as it was loaded, before anything is hooked into its model."""
    engine = config.engine
    if not engine.one_step_off or engine.rollout != "local":
        return None
    return snapshot_policy(policy, share=engine.training == "single")  # DeepSpeed may divide any weight among ranks


def snapshot_policy(policy: LoadedModel, *, share: bool) -> LoadedModel:
    """A second model with the same weights. With `share` those that are not trained (the base below adapters) are the
    policy's own tensors, not copies: safe where they stay where they are."""
    known = {id(weight): weight for weight in policy.model.parameters() if share and not weight.requires_grad}
    twin = deepcopy(policy.model, known)
    twin.requires_grad_(False)
    return replace(policy, model=twin)


@dataclass(eq=False)
class SnapshotRollout(WrappedRollout):
    """A sampler of a snapshot, whose weights are renewed by `follow`."""

    snapshot: LoadedModel
    """What `own` samples from: a copy of `policy`."""
    policy: LoadedModel

    @torch.no_grad()
    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`. Nothing may be sampling meanwhile."""
        newest = dict(self.policy.model.named_parameters())
        for name, weight in self.snapshot.model.named_parameters():
            if weight is not newest[name]:
                weight.copy_(newest[name])
        return self.own.follow(step)
