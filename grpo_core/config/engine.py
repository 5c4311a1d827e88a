"""Where a run's work is done, by which engines and in what portions. Loads no torch.

None of it changes what is learned, except where a docstring says so.
"""

from typing import Annotated, Literal

from pydantic import Field

from grpo_core.specs.fields import Count, NotNegative, Part, Positive


class VllmConfig(Part):
    place: Literal["colocated", "server"] = Field(default="colocated", title="vLLM runs")
    """colocated: vLLM in the trainer's process, on its device, asleep while the policy learns. server: a separate
    process on `devices` other GPUs of the first machine."""
    devices: Count = Field(default=1, title="GPUs of a vLLM server")
    """GPUs that a server has for itself, over which the model is split (tensor parallel). Without GPUs: 1."""
    memory_share: Annotated[float, Field(gt=0, lt=1, title="vLLM’s share of GPU memory")] = 0.35
    """Part of a GPU's memory that vLLM may take for weights and cache. A server, alone on its GPU, can have 0.9."""
    tolerance: Positive = Field(default=0.05, title="Tolerance of pushed weights, nats")
    """Largest mean difference, in nats a token, between vLLM's and the trainer's log-probabilities of a probe text
    after new weights were sent. Beyond it the run stops: the weights have not arrived."""
    eager: bool = Field(default=False, title="vLLM without CUDA graphs")
    """Without CUDA graphs: starts sooner, samples slower."""


class DeepSpeedConfig(Part):
    zero_stage: Literal[1, 2, 3] = Field(default=2, title="ZeRO stage")
    """What the ranks divide among themselves instead of each holding all: 1 the optimiser's state, 2 gradients too, 3
    the weights too."""
    offload: Literal["none", "optimizer", "all"] = Field(default="none", title="Offload to host memory")
    """What waits in the host's memory while it is not needed: the optimiser's state, or with ZeRO 3 the weights too."""


class EngineConfig(Part):
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", title="Device")
    """auto takes a GPU when there is one."""
    devices: Count = Field(default=1, title="Devices on each machine")
    """Processes on each machine, one a device. More than one are started by torchrun and share every step's work."""
    nodes: Count = Field(default=1, title="Machines")
    """Machines that train together."""
    threads: Count | None = Field(default=None, title="CPU threads")
    """CPU threads of each process; empty means all cores, shared out where several processes run on a machine. Results
    on a CPU are repeatable bit by bit for one number of threads."""
    rollout: Literal["local", "vllm"] = Field(default="local", title="Sampler")
    """What samples: our own batched sampler in the trainer, or vLLM. vLLM's numbers differ from the trainer's in the
    last digits; the difference is measured every step and corrected (algorithm.correction)."""
    vllm: VllmConfig = VllmConfig()
    """With rollout: vllm."""
    rollout_batch: Count = Field(default=512, title="Completions sampled side by side, at most")
    """Most completions sampled side by side."""
    rollout_tokens: Count = Field(default=131_072, title="Tokens held while sampling, at most")
    """Most tokens, of prompts and completions together, that the local sampler holds keys and values of at once.
    Changes memory and speed, not the result."""
    training: Literal["single", "deepspeed"] = Field(default="single", title="Trainer")
    """What learns: plain PyTorch, where every device holds all weights, or DeepSpeed, where they are divided."""
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    """With training: deepspeed."""
    one_step_off: bool = Field(default=False, title="Sample while learning (one step off)")
    """Sample the next step's completions while the policy learns from this step's. They are then one update old, which
    the ratio to the policy that sampled them corrects. Changes the result."""
    micro_batch_tokens: Count = Field(default=16384, title="Tokens of a micro-batch, at most")
    """Most tokens (padding included) in one forward and backward pass. Changes memory and speed, not the result."""
    layout: Literal["auto", "right", "left", "packed", "shared"] = Field(
        default="auto", title="Layout of micro-batches"
    )
    """How completions of unequal length share a micro-batch: padded on the right, padded on the left, one after the
    other without padding, or (shared) without padding and with each prompt gone through the model once for all
    completions of its group. auto: shared where the model's attention allows it, else right. Changes memory and speed,
    not the result."""
    skip_zero_advantage: bool = Field(default=True, title="Skip completions without gradient")
    """Do not run completions through the model that give no gradient. Exact, so off only serves to show it."""
    gradient_checkpointing: bool = Field(default=False, title="Gradient checkpointing")
    """Keep each layer's input only and compute the rest again for the gradient: less memory for about a third more
    time."""
    torch_compile: bool = Field(default=False, title="Compile the layers of the update")
    """Have torch.compile fuse the policy's layers while it learns: shorter updates, after the first took a minute or
    more. Needs a C++ compiler on a CPU, Triton on a GPU. Changes the last digits."""
    autocast: Literal["none", "bfloat16"] = Field(default="none", title="Autocast of the update")
    """bfloat16: matrix products of the update in bfloat16 with weights in float32. Changes the last digits."""
    watchdog_seconds: NotNegative = Field(default=1800.0, title="Warn when silent for, seconds")
    """A warning names what the run waits for when a phase has reported nothing for so long; 0 never."""
