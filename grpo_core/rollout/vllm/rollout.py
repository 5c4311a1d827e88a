"""Samples with vLLM: requests completions with one seed each, sends weights when the policy has moved, and proves
that they have arrived before anything is sampled.

Completions' log-probabilities are those of the distribution drawn from: temperature applied. With top-p, top-k, min-p
or a repetition penalty they are vLLM's after these (the config refuses corrections with them); vLLM does not report the
entropy. Its engine has no tokenizer, so stop strings are looked for here, and what it sampled after one is dropped.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar, Unpack

import numpy as np
from torch import Tensor

from grpo_core.data.prompts import stops
from grpo_core.errors import RolloutError
from grpo_core.model.load import LoadedModel
from grpo_core.model.lora import merged_state
from grpo_core.rollout.base import Completion, SamplingOptions
from grpo_core.rollout.vllm.probe import Probe
from grpo_core.rollout.vllm.settings import GenerateRequest, Sampled, Sampler, ServerExited
from grpo_core.runtime.fault_injection import fault

T = TypeVar("T")


@dataclass(eq=False)
class VllmRollout:
    """One engine and the policy that it follows."""

    start: Callable[[], Sampler]
    """Makes an engine."""
    policy: LoadedModel
    probe: Probe
    _: KW_ONLY
    restarts: bool
    """Start another engine, once in a step, when the first has ended. The policy must not change while
    something is sampled."""
    log: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self._step = 0
        self._pushed: int | None = None
        self._restarted: int | None = None
        self._metrics: dict[str, float] = {}
        self._sampler: Sampler | None = self.start()

    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """See `base.Rollout`."""
        key, samples = options["key"], options["samples"]
        streams = options.get("indices") or range(len(prompts))
        request = GenerateRequest(
            prompts=[list(prompt) for prompt in prompts],
            seeds=[[seed_of(key, stream, sample) for sample in range(samples)] for stream in streams],
            decoding=options["decoding"],
            stop=sorted(self.policy.eos_ids),
        )
        fault(f"vllm:asked:{self._step}")
        groups = self._retry_if_exited(lambda sampler: sampler.generate(request))
        stop = options["decoding"].stop
        return [[up_to_the_end(completion, self.policy, stop) for completion in group] for group in groups]

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`."""
        self._step = step
        if self._pushed == step:
            return {}
        self._retry_if_exited(self._push)
        return self._metrics

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def _push(self, sampler: Sampler) -> None:
        """Send the weights to an engine that does not hold them yet, and have it proved."""
        if self._pushed == self._step:
            return
        began = time.perf_counter()
        sampler.load(weights_of(self.policy))
        seconds = time.perf_counter() - began
        difference = self.probe.check(sampler.score(self.probe.texts), self.policy, step=self._step)
        self._pushed = self._step
        self._metrics = {"vllm/push_seconds": seconds, "vllm/probe_difference": difference}

    def _retry_if_exited(self, work: Callable[[Sampler], T]) -> T:
        """Do it; where the engine has ended, once more with a new one that holds the same weights."""
        assert self._sampler is not None
        try:
            return work(self._sampler)
        except ServerExited as exited:
            self.close()
            if not self.restarts or self._restarted == self._step:
                raise self._failed(exited, again=self.restarts) from exited
            self._restarted = self._step
            self.log(f"{exited}; it is started again and sent the weights anew")
            self._sampler = self.start()
            self._pushed = None
            self.probe.forget()
        try:
            self._push(self._sampler)
            return work(self._sampler)
        except ServerExited as exited:
            self.close()
            raise self._failed(exited, again=True) from exited

    @staticmethod
    def _failed(exited: ServerExited, *, again: bool) -> RolloutError:
        twice = ", for the second time in this step" if again else ""
        return RolloutError(f"{exited}{twice}. The run can resume from its newest checkpoint")


def up_to_the_end(sampled: Sampled, policy: LoadedModel, stop: Sequence[str]) -> Completion:
    """What was sampled up to its first end token, or the token that completes a stop string."""
    tokens, logprobs = sampled
    for length, token in enumerate(tokens, start=1):
        ended = token in policy.eos_ids
        if ended or stops(policy.tokenizer, tokens[:length], stop):
            return Completion(tuple(tokens[:length]), tuple(logprobs[:length]), "eos" if ended else "stop")
    return Completion(tuple(tokens), tuple(logprobs), "length")


def seed_of(key: Sequence[int], stream: int, sample: int) -> int:
    """63 bits that name a sample's random numbers, from the same names as the local sampler's streams."""
    (word,) = np.random.SeedSequence([*key, stream, sample]).generate_state(1, np.uint64)
    return int(word) >> 1


def weights_of(policy: LoadedModel) -> dict[str, Tensor]:
    """The policy's weights by their names in a checkpoint, adapters merged, tied ones under each of their names: vLLM
    on a CPU packs an output layer apart from the embedding that it is tied to."""
    from transformers.core_model_loading import revert_weight_conversion

    model = policy.model
    state: dict[str, Tensor] = merged_state(model) if policy.adapters is not None else model.state_dict()
    reverted: dict[str, Tensor] = revert_weight_conversion(model, state)
    return reverted
