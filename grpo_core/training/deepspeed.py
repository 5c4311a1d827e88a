"""The policy's weights held by DeepSpeed (ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054): every rank owns a part of
the optimiser's state (stage 1), of the gradients too (2), of the weights too (3), and lends the others what they need.

The losses, their denominators and the loop around them are those of one process (single.py), and so are the results but
for the order in which numbers are added up. Departures from DeepSpeed's ways:
- It averages gradients over ranks, and ours are sums; so a loss is multiplied by the number of ranks before.
- It clips inside its step. We want the norm before, because no step must follow one that is no number; so the norm is
  taken from the gradients as the ranks hold them, and DeepSpeed clips by its own, which is the same.
- Its checkpoints are pickles, for one stage and one number of ranks. Ours hold whole fp32 tensors, of which any engine
  takes its part.

With ZeRO 3 a module's weights come when the module is called: every rank must call the same modules in the same order.
Rows differ from rank to rank, modules do not, but for the output layer, which is used once for each portion of the
logits, and not always by a call. Its weights therefore stay for a whole pass, as if the pass itself owned them.

bf16 weights have fp32 copies, which are DeepSpeed's own. Adapters (LoRA) on a bf16 model become bf16 with such copies.
"""

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from grpo_core.config.kinds import LearningConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import ConfigError
from grpo_core.model.load import LoadedModel
from grpo_core.training.logprob_pass import idle_terms
from grpo_core.training.trainable import MOMENTS, adamw, fit

_STEP = "step"


class DeepSpeedWeights:
    """The policy's trained weights and AdamW on them, divided over the ranks. See `trainable.TrainableWeights`."""

    even_passes = True  # a gradient is summed over ranks while a pass continues

    def __init__(self, policy: LoadedModel, config: LearningConfig, *, ranks: Ranks) -> None:
        """Takes over the model's weights. Raises ConfigError where DeepSpeed is not installed."""
        self._deepspeed = load_deepspeed(policy.device)
        from deepspeed import utils

        self._utils = utils
        self._ranks = ranks
        self._model = policy.model
        self._whole_weights = config.engine.deepspeed.zero_stage < 3
        self._max_norm = config.optim.max_grad_norm
        self._named = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
        self._shapes = {name: p.shape for name, p in self._named.items()}
        """As ZeRO 3 leaves none."""
        self._optimizer = adamw(list(self._named.values()), config.optim, lr=0.0)
        self._pass = _Pass(policy.model)
        if ranks.world == 1:
            _alone(policy.device)
        self._engine, *_ = self._deepspeed.initialize(
            model=self._pass, optimizer=self._optimizer, config=settings(config), dist_init_required=False
        )
        if not self._whole_weights:
            self._keep_output_layer()
        self._left = 0
        """Passes that are still to come in this update."""
        self._steps = 0
        self._open(policy, config)

    # ------------------------------------------------------------------ an update

    def set_rate(self, lr: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    def zero_gradients(self, passes: int) -> None:
        """See `TrainableWeights`. DeepSpeed's gradients are 0 since its last step; it has to know the last pass."""
        self._left = passes

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """See `TrainableWeights`."""
        self._pass.work = work
        loss: Tensor = self._engine()
        return loss

    def backward(self, loss: Tensor) -> None:
        """See `TrainableWeights`."""
        self._left -= 1
        self._engine.set_gradient_accumulation_boundary(self._left == 0)
        self._engine.backward(loss * self._ranks.world, scale_wrt_gas=False)

    def finish(self, max_norm: float) -> float:
        """See `TrainableWeights`. Scaled down is in `step`, to the norm in the config."""
        assert self._left == 0, "an update without its last pass has no gradient yet"
        assert max_norm == self._max_norm, "DeepSpeed was given another limit"
        return self._norm()

    def step(self) -> None:
        self._engine.step()
        self._steps += 1

    @torch.no_grad()
    def _norm(self) -> float:
        """Of the gradient summed over ranks and passes. Where every rank has a part of each weight's (ZeRO 3), the
        parts' squares are summed; else each weight's is put together."""
        if self._whole_weights:
            grads = (self._utils.safe_get_full_grad(p) for p in self._named.values())
            return math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))
        parts = (self._utils.safe_get_local_grad(p) for p in self._named.values())
        mine = sum(float(part.double().square().sum()) for part in parts)
        return math.sqrt(self._ranks.sums({"square": mine})["square"])

    # ------------------------------------------------------------------ whole weights

    def whole(self) -> AbstractContextManager[None]:
        """See `TrainableWeights`. With ZeRO 3 every rank holds all weights within it."""
        return nullcontext() if self._whole_weights else self._gathered()

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """DeepSpeed's hooks are off inside: they would give a module's weights back when it has been called."""
        with self._deepspeed.zero.GatheredParameters(list(self._model.parameters())), hooks_off(self._pass):
            yield

    def _keep_output_layer(self) -> None:
        """Its weights come with the pass's forward and again with its backward, however often it is called between."""
        head = self._model.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise ConfigError(
                f"the output layer of {type(self._model).__name__} is a {type(head).__name__} and not a plain linear "
                "one, which ZeRO 3 cannot keep in one place; use engine.deepspeed.zero_stage: 2"
            )
        for weight in head.parameters():
            self._deepspeed.zero.register_external_parameter(self._pass, weight)
        head._forward_hooks.clear()
        head._forward_pre_hooks.clear()

    # ------------------------------------------------------------------ into a checkpoint and back

    def _open(self, policy: LoadedModel, config: LearningConfig) -> None:
        """DeepSpeed makes the moments in its first step, and `restore` needs them before. So a first step is made that
        changes nothing: its rate and its gradient are 0, and it is not counted."""
        self.zero_gradients(1)
        self.backward(self.forward(lambda: 0 * idle_terms(policy, config).logprobs_N.sum()))
        self._engine.step()
        self._count(0)

    def _count(self, steps: int) -> None:
        """Have made so many steps."""
        self._steps = steps
        for state in self._optimizer.state.values():
            state[_STEP].fill_(steps)

    def exact(self) -> dict[str, Tensor]:
        """See `TrainableWeights`; on the first rank alone, in main memory."""
        return self._collected({name: (p, None) for name, p in self._named.items()})

    def moments(self) -> dict[str, Tensor]:
        """See `TrainableWeights`; on the first rank alone, in main memory."""
        if self._steps == 0:
            return {}
        parts = [part for part in MOMENTS if part != _STEP]
        moments = self._collected({f"{name}.{part}": (p, part) for name, p in self._named.items() for part in parts})
        steps = {f"{name}.{_STEP}": torch.tensor(float(self._steps)) for name in self._named}
        return moments | steps if self._ranks.main else {}

    def _collected(self, weights: Mapping[str, tuple[Tensor, str | None]]) -> dict[str, Tensor]:
        """Each weight, or this of its moments, put together one after the other."""
        collected = {}
        for name, (weight, part) in weights.items():
            if part is None:
                whole = self._utils.safe_get_full_fp32_param(weight)
            else:
                whole = self._utils.safe_get_full_optimizer_state(weight, part)
            if self._ranks.main:
                collected[name] = whole.to("cpu", copy=True)
        return collected

    @torch.no_grad()
    def restore(self, exact: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """See `TrainableWeights`."""
        fit(exact, self._shapes, moments)
        for name, weight in self._named.items():
            self._put(weight, exact[name], None)
            for part in MOMENTS:
                if part != _STEP:
                    self._put(weight, moments[f"{name}.{part}"] if moments else torch.zeros(self._shapes[name]), part)
            # And the weight that the model computes with: DeepSpeed makes it of the copy above only in its next step.
            with self._gathered_weight(weight):
                weight.copy_(exact[name])
        self._count(int(moments[f"{name}.{_STEP}"]) if moments else 0)

    def _put(self, weight: Tensor, value: Tensor, part: str | None) -> None:
        """Set this rank's part of a weight's fp32 copy, or of one of its moments."""
        if self._whole_weights and part is None:
            self._utils.safe_set_full_fp32_param(weight, value)
        elif self._whole_weights:
            self._utils.safe_set_full_optimizer_state(weight, value, part)
        else:
            mine = self._part(value, weight.ds_tensor.numel())  # type: ignore[attr-defined]
            if part is None:
                self._utils.safe_set_local_fp32_param(weight, mine)
            else:
                self._utils.safe_set_local_optimizer_state(weight, mine, part)

    def _part(self, value: Tensor, size: int) -> Tensor:
        """This rank's of equal parts, `size` numbers each, the last filled up with 0."""
        flat = value.flatten()
        start = self._ranks.rank * size
        mine = flat[start : start + size]
        return F.pad(mine, (0, size - len(mine)))

    def _gathered_weight(self, weight: Tensor) -> AbstractContextManager[object]:
        """Within it the weight is whole, and what the first rank makes of it stays."""
        if self._whole_weights:
            return nullcontext()
        gathered: AbstractContextManager[object] = self._deepspeed.zero.GatheredParameters([weight], modifier_rank=0)
        return gathered


class _Pass(nn.Module):
    """What DeepSpeed takes for the model: going forward is to do `work` with the policy, whatever that is."""

    work: Callable[[], Tensor]

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self) -> Tensor:
        return self.work()


@contextmanager
def hooks_off(module: nn.Module) -> Iterator[None]:
    """Within it nothing happens before and after a module inside `module` is called but its own forward."""
    kept = [(inside, inside._forward_pre_hooks, inside._forward_hooks) for inside in module.modules()]
    try:
        for inside, before, after in kept:
            inside._forward_pre_hooks, inside._forward_hooks = type(before)(), type(after)()
        yield
    finally:
        for inside, before, after in kept:
            inside._forward_pre_hooks, inside._forward_hooks = before, after


def load_deepspeed(device: torch.device) -> ModuleType:
    """The package, for this device. Raises ConfigError where it is not installed, or has taken another device."""
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ.setdefault("LOCAL_RANK", "0")  # read now and then; torchrun sets it
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            f"engine.training is deepspeed, and DeepSpeed cannot be loaded ({error}). {INSTALL}"
        ) from None
    from deepspeed.accelerator import get_accelerator

    deepspeed.utils.logger.setLevel(logging.WARNING)
    if (taken := get_accelerator().device_name()) != device.type:
        raise ConfigError(f"DeepSpeed was loaded for {taken} before the run began, and the run is on {device.type}")
    # Serves its inference alone, and would be compiled when ranks on CPUs meet.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    package: ModuleType = deepspeed
    return package


def _alone(device: torch.device) -> None:
    """DeepSpeed exchanges with itself where there is one rank."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


INSTALL = (
    "Install it next to torch, in an environment without the platform: pip install --no-build-isolation "
    "'cohort-grpo[deepspeed]' (in a checkout: make deepspeed-env); or set engine.training: single"
)


def settings(config: LearningConfig) -> dict[str, Any]:
    """DeepSpeed's configuration. Learning rate, losses and the number of passes stay with us: a batch of one and one
    pass are given only because it requires them."""
    chosen = config.engine.deepspeed
    zero: dict[str, Any] = {"stage": chosen.zero_stage}
    if chosen.offload != "none":
        zero["offload_optimizer"] = _HOST
    if chosen.offload == "all":
        zero["offload_param"] = _HOST
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.max_grad_norm,
        "zero_optimization": zero,
        # Its own AdamW for offloaded moments has to be compiled, and its results are not quite torch's.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.model.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": None,
    }


_HOST = {"device": "cpu", "pin_memory": True}
