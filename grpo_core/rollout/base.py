"""What a rollout engine takes and gives: tokens in, tokens out. The caller makes the text and never tokenises it
again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, Protocol, TypedDict, Unpack

from grpo_core.records.types import FinishReason


@dataclass(frozen=True)
class Decoding:
    """How completions are drawn."""

    max_tokens: int
    """Longest completion, end token included."""
    temperature: float = 1.0
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    min_p: float = 0.0
    """Tokens below this share of the likeliest one's probability are left out; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Logits of tokens of prompt and completion are divided by it where positive, else multiplied; 1 leaves them."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, with the token that completes one."""


@dataclass(frozen=True)
class Completion:
    """One sampled completion."""

    tokens: tuple[int, ...]
    """Ids; the end token, or the token that completes a stop string, is the last."""
    logprobs: tuple[float, ...]
    """log π of each token under the sampling policy: temperature applied, before a repetition penalty, top-k, top-p and
    min-p changed what is drawn from."""
    finish: FinishReason
    entropy: float | None = None
    """Mean entropy in nats of the distributions drawn from, of the same kind; None where the engine has none."""


class SamplingOptions(TypedDict):
    """How `Rollout.generate` samples."""

    samples: int
    """Completions of each prompt."""
    decoding: Decoding
    key: tuple[int, ...]
    """The same key and index of a prompt draw the same random numbers."""
    indices: NotRequired[Sequence[int]]
    """Of the prompts in the whole step; 0, 1, 2 … when not given."""


class Rollout(Protocol):
    """Something that samples from the policy as it is now."""

    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """Completions of each prompt, in order."""

    def follow(self, step: int) -> dict[str, float]:
        """The policy has moved: from now on sample from its weights as they are after `step` steps. Returns its
        metrics. Raises RolloutError when the new weights did not arrive."""

    def close(self) -> None:
        """Give back processes and memory. Called once, after everything."""
