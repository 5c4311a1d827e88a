"""The loss on held-out conversations: whether what is learned from given answers holds for others.

Mean cross-entropy over all their answer tokens, in nats, as the training loss is (config.sft.MAXIMUM_LIKELIHOOD).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from grpo_core.config.kinds import LearningConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.model.layout import plan_rows
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel
from grpo_core.records.types import Event, Phase
from grpo_core.runtime.watchdog import doing
from grpo_core.training.base import TrainRow, owners
from grpo_core.training.logprob_pass import policy_terms, texts
from grpo_core.training.micro_batch import per_token


@dataclass(frozen=True)
class MeasuredLoss:
    """One measurement."""

    loss: float
    """Nats per answer token."""
    accuracy: float
    """Share of the answer tokens than which none was likelier."""
    tokens: int
    """Of answers."""
    conversations: int
    seconds: float

    @property
    def text(self) -> str:
        return f"held-out loss {self.loss:.4f}"

    def metrics(self) -> dict[str, float]:
        """By TRL's names."""
        return {"eval/loss": self.loss, "eval/mean_token_accuracy": self.accuracy}

    def event(self, phase: Phase, step: int) -> Event:
        """Of a measurement before or after training."""
        message = f"{self.text} nats per token of {self.conversations:,} conversations, {phase} training"
        data = {
            "phase": phase,
            "step": step,
            "loss": self.loss,
            "mean_token_accuracy": self.accuracy,
            "tokens": self.tokens,
            "conversations": self.conversations,
        }
        return Event(type="heldout_loss", message=message, data=data)


@dataclass(eq=False)
class HeldoutLoss:
    """Of one run; every rank has one and measures its share of the rows."""

    rows: Sequence[TrainRow]
    conversations: int
    config: LearningConfig
    policy: LoadedModel
    ranks: Ranks
    check: Callable[[], None]
    """Called before every micro-batch; may raise to stop."""

    @torch.no_grad()
    def measure(self) -> MeasuredLoss:
        """With the policy's weights as they are, whole on every rank."""
        began = time.perf_counter()
        owner = owners(self.rows, [range(len(self.rows))], self.ranks.world)
        mine = [index for index in sorted(owner) if owner[index] == self.ranks.rank]
        engine = self.config.engine
        layout = resolve_layout(self.policy, engine.layout)
        sums = {"nats": 0.0, "greedy": 0.0}
        for number, portion in enumerate(plan_rows(*texts(self.rows, mine)[:2], engine.micro_batch_tokens, layout)):
            self.check()
            doing("held-out loss", f"micro-batch {number + 1}")
            indices = [mine[i] for i in portion]
            prompts, completions, _ = texts(self.rows, indices)
            terms = policy_terms(self.policy, self.config, prompts, completions, entropy=False)
            learned_N = torch.cat([per_token(self.rows[index]) for index in indices]).to(self.policy.device)
            sums["nats"] -= float((terms.logprobs_N.double() * learned_N).sum())
            sums["greedy"] += float((terms.greedy_N & (learned_N != 0)).sum())
        total = self.ranks.sums(sums)
        tokens = sum(row.length for row in self.rows)
        return MeasuredLoss(
            loss=total["nats"] / tokens,
            accuracy=total["greedy"] / tokens,
            tokens=tokens,
            conversations=self.conversations,
            seconds=time.perf_counter() - began,
        )
