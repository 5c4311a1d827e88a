"""vLLM in the trainer's process, on its device, asleep while the policy learns."""

import os
from collections.abc import Callable, Sequence

from torch import Tensor

from grpo_core.rollout.vllm.engine import Engine
from grpo_core.rollout.vllm.settings import Asked, Settings, Told


class Colocated:
    """A `settings.Sampler` around an engine of this process. Weights are copied from tensor to tensor."""

    def __init__(self, settings: Settings, *, check: Callable[[], None]) -> None:
        """Raises RolloutError."""
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its words would end up in the run's log
        self._engine = Engine(settings, check=check)
        self._engine.sleep()

    def generate(self, asked: Asked) -> list[list[Told]]:
        """See `settings.Sampler`."""
        told = self._engine.generate(asked)
        self._engine.sleep()
        return told

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `settings.Sampler`. It is followed by sampling, so the engine stays awake."""
        return self._engine.score(texts)

    def load(self, weights: dict[str, Tensor]) -> None:
        """See `settings.Sampler`."""
        self._engine.load(weights)

    def close(self) -> None:
        self._engine.close()
