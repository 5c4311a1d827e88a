"""The proof that vLLM holds the weights it was sent: it and the trainer score the same made-up text, and must agree.

A push can return without an error and have changed nothing, or only some layers. Two checks follow each one:
- The mean difference of the log-probabilities is at most `tolerance`. After the first push that proves everything,
  because an engine starts with random weights.
- Later, when weights have moved little, an engine that still holds the old ones, or some of them, would pass that too.
  So once the trainer's own numbers have moved measurably since the last proof, what separates vLLM's from them must be
  small compared with that move, or about what it was then. Small moves add up until they are measurable.

Shapes: N scored tokens of all texts, text after text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_core.errors import NotFinite, RolloutError
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import completion_logprobs

TEXTS = 4
LENGTH = 32
MEASURABLE = 16.0
"""The trainer's numbers have moved measurably when they have by so many times what the two engines differed by then."""
LEFT = 1 / 16
"""Part of such a move that may be missing in vLLM's numbers."""
GROWN = 4.0
"""Or so many times what they differed by: engines differ more where a policy has become surer."""
_STREAM = 5
"""Name of the random stream; 0 to 4 are draw's, the evaluation's and the traces'."""


@dataclass(frozen=True)
class _Proved:
    """The last push that was seen to arrive."""

    step: int
    trainer_N: Tensor
    difference: float


class Probe:
    """The texts, and what was proved of the pushes until now."""

    def __init__(self, *, vocabulary: int, positions: int, tolerance: float, seed: int) -> None:
        """Texts of tokens from the whole vocabulary. `tolerance`: engine.vllm.tolerance, nats a token."""
        random = np.random.default_rng([seed, _STREAM])
        self.texts: list[list[int]] = random.integers(vocabulary, size=(TEXTS, min(LENGTH, positions - 1))).tolist()
        self._tolerance = tolerance
        self._proved: _Proved | None = None

    def check(self, logprobs: Sequence[Sequence[float]], policy: LoadedModel, *, step: int) -> float:
        """Mean difference in nats a token between `logprobs`, of vLLM, and the trainer's after `step` steps. Raises
        RolloutError when it shows that the weights have not arrived."""
        vllm_N = torch.tensor([number for text in logprobs for number in text], dtype=torch.float64)
        trainer_N = self._trainer(policy)
        difference = _mean(vllm_N, trainer_N)
        if not difference <= self._tolerance:  # a NaN is not within either
            raise RolloutError(
                f"the weights after step {step} have not arrived in vLLM: its log-probabilities of a probe text "
                f"differ from the trainer's by {difference:.3g} nats a token, and engine.vllm.tolerance allows "
                f"{self._tolerance:g}. Completions of other weights than those that learn would teach nothing, so the "
                "run stops. If vLLM only computes this model a little otherwise, the difference is the same at every "
                "push: then raise the tolerance, or use model.dtype: float32"
            )
        before = self._proved
        if before is None:
            self._proved = _Proved(step, trainer_N, difference)
            return difference
        moved = _mean(trainer_N, before.trainer_N)
        if moved > MEASURABLE * before.difference:
            if difference > max(LEFT * moved, GROWN * before.difference):
                raise RolloutError(
                    f"the weights after step {step} have not arrived in vLLM, or not all of them: on a probe text the "
                    f"trainer's log-probabilities have moved by {moved:.3g} nats a token since step {before.step}, and "
                    f"vLLM's are {difference:.3g} from them, where it was {before.difference:.3g} then. Completions of "
                    "old weights would be taken for the policy's, so the run stops"
                )
            self._proved = _Proved(step, trainer_N, difference)
        return difference

    def forget(self) -> None:
        """Another engine comes, with random weights again."""
        self._proved = None

    @torch.no_grad()
    def _trainer(self, policy: LoadedModel) -> Tensor:
        found_N = completion_logprobs(
            policy.model, [text[:1] for text in self.texts], [text[1:] for text in self.texts], pad_id=policy.pad_id
        )
        if not torch.isfinite(found_N).all():
            raise NotFinite(
                "the policy's probabilities are no numbers any more: it has diverged. A lower optim.lr often helps"
            )
        return found_N.to("cpu", torch.float64)


def _mean(first_N: Tensor, other_N: Tensor) -> float:
    return float((first_N - other_N).abs().mean())
