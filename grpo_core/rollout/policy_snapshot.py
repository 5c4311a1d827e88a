"""A copy of the policy that stays unchanged while another thread trains the original: a local sampler samples from it
with engine.one_step_off."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, Unpack

import torch

from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.model.load import LoadedModel
from grpo_core.rollout.base import Completion, Rollout, SamplingOptions


def completions_payload(groups: list[list[Completion]]) -> list[Any]:
    """As JSON, for the other ranks."""
    return [[asdict(completion) for completion in group] for group in groups]


def completions_from(payload: list[Any]) -> list[list[Completion]]:
    """Inverse of `completions_payload`."""
    return [
        [Completion(tuple(c["tokens"]), tuple(c["logprobs"]), c["finish"], c["entropy"]) for c in group]
        for group in payload
    ]


class WrappedRollout:
    """Passes everything on to another rollout."""

    def __init__(self, own: Rollout) -> None:
        self._own = own

    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """See `base.Rollout`."""
        return self._own.generate(prompts, **options)

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`."""
        return self._own.follow(step)

    def close(self) -> None:
        self._own.close()


class RankedRollout(WrappedRollout):
    """A rollout of all ranks together. The random numbers of a prompt do not depend on which rank samples it."""

    def __init__(self, own: Rollout, ranks: Ranks) -> None:
        super().__init__(own)
        self._ranks = ranks

    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """See `base.Rollout`. Every rank must call it with the same arguments."""
        if self._ranks.world == 1:
            return super().generate(prompts, **options)
        indices, mine = options.get("indices") or range(len(prompts)), self._ranks.share(len(prompts))
        part: SamplingOptions = {**options, "indices": [indices[i] for i in mine]}
        groups = self._ranks.together(lambda: self._own.generate([prompts[i] for i in mine], **part) if mine else [])
        return completions_from(self._ranks.spread(completions_payload(groups), len(prompts)))

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`. What goes wrong on one rank, such as weights that did not arrive, ends it on all."""
        return self._ranks.together(lambda: self._own.follow(step))


def snapshot_for(config: RunConfig, policy: LoadedModel) -> LoadedModel | None:
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


class SnapshotRollout(WrappedRollout):
    """A sampler of a snapshot, whose weights are renewed by `follow`."""

    def __init__(self, own: Rollout, snapshot: LoadedModel, policy: LoadedModel) -> None:
        """`own` samples from `snapshot`, a copy of `policy`."""
        super().__init__(own)
        self._snapshot = snapshot
        self._policy = policy

    @torch.no_grad()
    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`. Nothing may be sampling meanwhile."""
        newest = dict(self._policy.model.named_parameters())
        for name, weight in self._snapshot.model.named_parameters():
            if weight is not newest[name]:
                weight.copy_(newest[name])
        return self._own.follow(step)
