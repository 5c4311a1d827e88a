"""The reference policy of the KL penalty: a frozen model next to the policy, or the policy itself with its LoRA
adapters off, which costs no memory."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.config.kinds import LearningConfig
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.lora import adapters_off
from grpo_core.runtime.clock import timed
from grpo_core.training.base import products
from grpo_core.training.trainable import fit


@dataclass(eq=False)
class Reference:
    """What the policy is held to. Never gets a gradient."""

    policy: LoadedModel
    frozen: LoadedModel | None
    """None: the policy with its adapters off."""
    config: LearningConfig

    def __post_init__(self) -> None:
        if self.frozen is None and self.config.model.lora.rank == 0:
            raise ValueError("without adapters a reference is a separate model")
        # In bf16 a small move towards the policy would be rounded away each time.
        self._exact: list[Tensor] | None = None
        if self.frozen is not None and self.config.algorithm.reference.refresh == "average":
            self._exact = [weight.detach().float() for weight in self.frozen.model.parameters()]

    @torch.no_grad()
    def logprobs(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Tensor:
        """log π_ref of every completion token, at the sampling temperature; fp32, shape N."""
        loaded = self.frozen or self.policy
        layout = resolve_layout(loaded, self.config.engine.layout)
        base = adapters_off(loaded.model) if self.frozen is None else nullcontext()
        with timed("logprobs"), base, products(self.config.engine.autocast, loaded.device):
            return completion_logprobs(
                loaded.model,
                prompts,
                completions,
                temperature=self.config.sampling.temperature,
                layout=layout,
                pad_id=self.policy.pad_id,
            )

    @torch.no_grad()
    def after_step(self, step: int) -> bool:
        """Let the reference follow the policy where the config says so; returns whether it moved.

        replace: π_ref ← π (R1: every 400 steps). average: π_ref ← w·π + (1−w)·π_ref, weight by weight.
        """
        follow = self.config.algorithm.reference
        if follow.refresh == "never" or self.frozen is None or step % follow.every:
            return False
        pairs = list(zip(self.frozen.model.parameters(), self.policy.model.parameters(), strict=True))
        if self._exact is None:
            for ours, theirs in pairs:
                ours.copy_(theirs)
        else:
            for exact, (ours, theirs) in zip(self._exact, pairs, strict=True):
                ours.copy_(exact.lerp_(theirs.float(), follow.weight))
        return True

    # ------------------------------------------------------------------ into a checkpoint and back

    @property
    def is_policy(self) -> bool:
        """Whether it is the policy's own model, its adapters off."""
        return self.frozen is None

    @property
    def moves(self) -> bool:
        """Whether it may differ from the model that the run started from."""
        return self.frozen is not None and self.config.algorithm.reference.refresh != "never"

    def exact(self) -> dict[str, Tensor]:
        """Its weights by name, each once: the fp32 ones where it has such."""
        assert self.frozen is not None
        names = [name for name, _ in self.frozen.model.named_parameters()]
        weights = self._exact or [weight.detach() for weight in self.frozen.model.parameters()]
        return dict(zip(names, weights, strict=True))

    @torch.no_grad()
    def restore(self, exact: Mapping[str, Tensor]) -> None:
        """Take over what `exact` gave. Raises CheckpointError when it is of another model."""
        assert self.frozen is not None
        fit(exact, {name: weight.shape for name, weight in self.frozen.model.named_parameters()})
        for index, (name, weight) in enumerate(self.frozen.model.named_parameters()):
            weight.copy_(exact[name])
            if self._exact is not None:
                self._exact[index].copy_(exact[name])
