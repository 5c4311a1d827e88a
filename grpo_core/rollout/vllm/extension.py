"""What vLLM's workers can do besides vLLM's own: take weights, part by part. Runs inside vLLM.

Weights come as a checkpoint has them. vLLM keeps them otherwise: fused (q, k, v), split over GPUs, on a CPU packed into
closures. Its layerwise reload puts each layer back to how a loader expects it, loads, and packs it again; it is begun
and ended here around the parts, the way vLLM's own transfer engines do.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from grpo_core.rollout.vllm.shared import incoming
from grpo_core.runtime.fault_injection import triggered


class TakesWeights:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    model_runner: Any
    vllm_config: Any

    def weights_begin(self) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(self.model_runner.get_model())

    def weights_take(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Some of them. Raises ValueError for a name that the model does not have."""
        from vllm.config import set_current_vllm_config

        if triggered("vllm:drops-linear"):
            weights = [(name, tensor) for name, tensor in weights if "proj" not in name]
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(iter(weights))

    def weights_take_shared(self, location: list[int], entries: list[Any]) -> None:
        """One chunk of them, from the trainer's memory."""
        self.weights_take(incoming(location, entries).items())

    def weights_end(self) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.vllm_config.model_config)
