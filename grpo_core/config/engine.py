"""Where a run's work is done, by which engines and in what portions. Loads no torch.

None of it changes what is learned, but where a docstring says so.
"""

from typing import Annotated, Literal

from pydantic import Field

from grpo_core.specs.fields import Count, NotNegative, Part, Positive


class VllmConfig(Part):
    place: Literal["colocated", "server"] = "colocated"
    """colocated: vLLM in the trainer's process, on its device, asleep while the policy learns. server: a process of its
    own on `devices` other GPUs of the first machine."""
    devices: Count = 1
    """GPUs that a server has for itself, over which the model is split (tensor parallel). Without GPUs: 1."""
    memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.35
    """Part of a GPU's memory that vLLM may take for weights and cache. A server, alone on its GPU, can have 0.9."""
    tolerance: Positive = 0.05
    """Largest mean difference, in nats a token, between vLLM's and the trainer's log-probabilities of a probe text
    after new weights were sent. Beyond it the run stops: the weights have not arrived."""
    eager: bool = False
    """Without CUDA graphs: starts sooner, samples slower."""


class DeepSpeedConfig(Part):
    zero_stage: Literal[1, 2, 3] = 2
    """What the ranks divide among themselves instead of each holding all: 1 the optimiser's state, 2 gradients too, 3
    the weights too."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What waits in the host's memory while it is not needed: the optimiser's state, or with ZeRO 3 the weights too."""


class EngineConfig(Part):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU when there is one."""
    devices: Count = 1
    """Processes on each machine, one a device. More than one are started by torchrun and share every step's work."""
    nodes: Count = 1
    """Machines that train together."""
    threads: Count | None = None
    """CPU threads of each process; empty means all cores, shared out where several processes run on a machine. Results
    on a CPU are repeatable bit by bit for one number of threads."""
    rollout: Literal["local", "vllm"] = "local"
    """What samples: our own batched sampler in the trainer, or vLLM. vLLM's numbers differ from the trainer's in the
    last digits; the difference is measured every step and corrected (algorithm.correction)."""
    vllm: VllmConfig = VllmConfig()
    """With rollout: vllm."""
    rollout_batch: Count = 512
    """Most completions sampled side by side."""
    rollout_tokens: Count = 131_072
    """Most tokens, of prompts and completions together, that the local sampler holds keys and values of at once.
    Changes memory and speed, not the result."""
    training: Literal["single", "deepspeed"] = "single"
    """What learns: plain PyTorch, where every device holds all weights, or DeepSpeed, where they are divided."""
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    """With training: deepspeed."""
    one_step_off: bool = False
    """Sample the next step's completions while the policy learns from this step's. They are then one update old, which
    the ratio to the policy that sampled them corrects. Changes the result."""
    micro_batch_tokens: Count = 16384
    """Most tokens (padding included) in one forward and backward pass. Changes memory and speed, not the result."""
    layout: Literal["auto", "right", "left", "packed", "shared"] = "auto"
    """How completions of unequal length share a micro-batch: padded on the right, padded on the left, one after the
    other without padding, or (shared) without padding and with each prompt gone through the model once for all
    completions of its group. auto: shared where the model's attention allows it, else right. Changes memory and speed,
    not the result."""
    skip_zero_advantage: bool = True
    """Do not run completions through the model that give no gradient. Exact, so off only serves to show it."""
    gradient_checkpointing: bool = False
    """Keep each layer's input only and compute the rest again for the gradient: less memory for about a third more
    time."""
    torch_compile: bool = False
    """Have torch.compile fuse the policy's layers while it learns: shorter updates, after the first took a minute or
    more. Needs a C++ compiler on a CPU, Triton on a GPU. Changes the last digits."""
    autocast: Literal["none", "bfloat16"] = "none"
    """bfloat16: matrix products of the update in bfloat16 with weights in float32. Changes the last digits."""
    watchdog_seconds: NotNegative = 1800.0
    """The run is warned of, with the name of what it waits for, when a phase has told nothing for so long; 0 never."""
