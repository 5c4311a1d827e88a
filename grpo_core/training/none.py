"""What the loop has in place of training where no weight changes: it carries the rows of the dataset that is being
sampled through checkpoints, as bytes."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_core.errors import CheckpointError

_PART, _ROWS, _OTHER = "dataset", "rows", "other_tokens"


@dataclass(eq=False)
class NoTraining:
    """Meets `training.base.Training`."""

    kl_coef: float = 0.0
    changed_in: int = 0
    """Newest step whose rows are in it: as with weights, there is then no state to resume from but the step's end."""
    rows: list[bytes] = field(default_factory=list)
    """Lines of the dataset so far."""
    other_tokens: int = 0
    """Of them, those that the tokenizer splits otherwise than they were sampled."""

    def add(self, lines: list[bytes], *, other_tokens: int, step: int) -> None:
        """The rows of one step."""
        self.changed_in = step
        self.rows += lines
        self.other_tokens += other_tokens

    def whole(self) -> AbstractContextManager[None]:
        """See `base.Training`: the model always holds its weights whole."""
        return nullcontext()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """See `base.Training`."""
        content = bytearray(b"".join(self.rows))
        rows = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        return {_PART: {_ROWS: rows, _OTHER: torch.tensor([self.other_tokens])}}

    def restore(self, parts: Mapping[str, Mapping[str, Tensor]], *, kl_coef: float, step: int) -> None:
        """See `base.Training`."""
        if parts.keys() != {_PART} or parts[_PART].keys() != {_ROWS, _OTHER}:
            raise CheckpointError("the checkpoint is not that of a run of kind sample: it holds no rows of a dataset")
        self.kl_coef, self.changed_in = kl_coef, step
        self.rows = parts[_PART][_ROWS].numpy().tobytes().splitlines(keepends=True)
        self.other_tokens = int(parts[_PART][_OTHER])
