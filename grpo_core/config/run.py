"""One type for everything a GRPO run can be given, `RunConfig`, and the parts that other kinds of run share with it.

Form, YAML, JSON, API and command line all use it, losslessly. Loads no torch, so that the platform may check a
config without it. A field's docstring follows it and is what the form shows as help.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.conflicts import run_refusal
from grpo_core.config.evaluation import REWARD, EvalConfig
from grpo_core.config.optim import OptimConfig as OptimConfig
from grpo_core.config.prompt import PromptConfig
from grpo_core.config.reward import ErrorPolicy as ErrorPolicy
from grpo_core.config.reward import RewardComponent as RewardComponent
from grpo_core.config.reward import RewardConfig as RewardConfig
from grpo_core.config.stage import Kind, RunName, StageConfig
from grpo_core.errors import Conflict
from grpo_core.specs.fields import (
    Count,
    CountOrZero,
    DataColumns,
    HubSplit,
    NotNegative,
    Part,
    Positive,
    Share,
    StopStrings,
    Temperature,
)
from grpo_core.specs.fields import DataFormat as DataFormat


class LoraConfig(Part):
    rank: CountOrZero = Field(default=0, title="LoRA rank")
    """Rank of the adapters; 0 trains all weights. With adapters the reference is the same model with them off, so no
    other is loaded."""
    alpha: Positive = Field(default=32.0, title="LoRA alpha")
    """The adapters' output is scaled by alpha / rank."""
    targets: Literal["all_linear", "attention"] = Field(default="all_linear", title="LoRA layers")
    """Which layers get adapters: every linear layer but the output, or those of attention only."""


class ModelConfig(Part):
    path: Annotated[str, Field(min_length=1)]
    """Folder with safetensors weights, a checkpoint of a run, or a Hugging Face Hub id. A relative folder is looked for
    next to the config file, then in the folder that the variable GRPO_MODELS names."""
    revision: str | None = None
    """Commit of the Hub repository, 40 hex digits. Needed with a Hub id, so that the run can be repeated; with it, no
    folder is looked at."""
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", title="Weights dtype")
    """Number format of the policy's weights. float32 is exact and the default on a CPU."""
    lora: LoraConfig = LoraConfig()
    """Train small adapters instead of all weights."""
    quantization: Literal["none", "nf4"] = Field(default="none", title="Quantization of the base")
    """nf4: the base model under LoRA adapters is held in 4 bits (QLoRA, arXiv 2305.14314), which takes about a quarter
    of bfloat16's memory. Needs a GPU and bitsandbytes. Changes the result."""
    adapter: Literal["continue", "merge"] = Field(default="continue", title="Adapters of the base")
    """Where `path` is a folder of LoRA adapters, or a checkpoint of a LoRA run. continue: the same adapters go on being
    trained, with the rank, alpha and layers that they have. merge: they become part of the weights first."""


class DataConfig(PromptConfig):
    path: Annotated[str, Field(min_length=1)]
    """File with problems: JSON lines, a JSON list, CSV (each also in gzip) or Parquet. A relative path starts at the
    config file's folder. With `hub`: id of a dataset on the Hugging Face Hub."""
    hub: HubSplit | None = None
    """Commit and split of a dataset on the Hub; with it, no file of this name is looked at."""
    format: DataFormat = "auto"
    """Layout of the rows: docs/data.md lists them. auto: as the first row's fields say, refused where they fit none or
    several."""
    columns: DataColumns = DataColumns()
    """Which field is what, where the layout does not say it."""
    limit: Count | None = Field(default=None, title="First problems only")
    """Use only the first so many problems; empty means all."""
    max_prompt_tokens: Count = 512
    """Longest prompt that is taken."""
    long_prompts: Literal["error", "drop"] = "error"
    """What to do with a longer prompt: stop and name it, or drop it and count it."""
    unreadable: Literal["error", "drop"] = "error"
    """What to do with a problem whose reference the reward cannot read, such as a sum for math: stop and name it, or
    drop it and count it. No completion of it could be right."""


class SamplingConfig(Part):
    group_size: Annotated[int, Field(ge=2, le=1024, title="Group size G")] = 8
    """G, completions per problem. DeepSeekMath used 64, R1 and DAPO 16. More make the baseline steadier and cost
    time in proportion."""
    prompts_per_step: Count = 32
    """Problems of one sampled batch, which is one step."""
    temperature: Temperature = 1.0
    """Sampling temperature; log-probabilities of policy, old policy and reference are divided by it too."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    top_k: CountOrZero = 0
    """Keep only so many tokens; 0 keeps all."""
    min_p: Share = 0.0
    """Keep only tokens of at least this share of the likeliest one's probability; 0 keeps all."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] = 1.0
    """Logits of tokens that stand in prompt or completion are divided by this where positive, else multiplied by it
    (CTRL, arXiv 1909.05858, section 4.1); 1 leaves them alone."""
    stop: StopStrings = ()
    """Texts that end a completion, as an end token does; what is scored ends before them. They hold for evaluations
    too."""
    max_completion_tokens: Count = Field(default=256, title="Max completion tokens")
    """Longest completion; a completion that reaches it without an end token counts as truncated."""

    @field_validator("group_size", mode="before")
    @classmethod
    def _a_group(cls, size: Any) -> Any:
        if size == 1:
            raise Conflict(
                "group_too_small",
                "a group of 1 has no other completion to be compared with, so there is nothing to learn from it; "
                "give 2 or more",
            )
        return size


TokenChoice = Literal["none", "best", "worst", "random", "flagged", "all"]


class TracesConfig(Part):
    groups_per_step: CountOrZero = Field(default=32, title="Groups kept per step")
    """Groups kept with all their completions at each step, picked by seed. The rewards of the others are counted."""
    tokens: Annotated[tuple[TokenChoice, ...], Field(min_length=1, title="Samples kept with token arrays")] = (
        "best",
        "worst",
        "random",
    )
    """Samples of the kept groups, at each step, that are stored token by token: those of the highest reward (best), of
    the lowest (worst), picked by seed (random), those left out of the update, with an error, of a phantom group or
    where sampler and trainer differ most (flagged), all, or none. Changes no training."""
    tokens_per_choice: Count = Field(default=2, title="Samples of each choice per step")
    """Most samples that each choice but `all` adds to a step's token arrays."""

    @field_validator("tokens")
    @classmethod
    def _choices_go_together(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a choice twice")
        if "none" in value and len(value) > 1:
            raise ValueError("none goes with no other choice")
        return value


class CheckpointConfig(Part):
    every: Count | None = Field(default=None, title="Checkpoint every, steps")
    """Steps between checkpoints that a run can resume from. Empty: as often as writing one takes at most `cost` of the
    time, which for a small model is after every step."""
    cost: Annotated[float, Field(gt=0, le=1, title="Time for checkpoints, share")] = 0.05
    """Most of the time that writing checkpoints may take, where `every` is empty."""
    keep: Count = Field(default=2, title="Newest checkpoints kept")
    """Newest checkpoints kept. The best and those that a person pinned stay as well."""
    best: bool = Field(default=True, title="Keep the best checkpoint")
    """Keep the best checkpoint, by `best_by`."""
    best_by: str | None = Field(default=None, title="Best checkpoint by")
    """Suite that is evaluated while training and decides which checkpoint is the best; `heldout` is the held-out
    problems, `reward` the mean training reward over ten steps. Empty: the first of `eval.during` of which a higher
    score is better, else `reward`."""
    final: bool = Field(default=True, title="Keep the trained weights")
    """Write the trained weights, as a folder that transformers and vLLM load, when training ends."""
    merged: bool = Field(default=True, title="Merge adapters into the weights kept")
    """With LoRA: keep whole weights with the adapters merged in, and the adapters next to them. Off: the adapters
    alone, a small folder that peft and vLLM load on top of the base model."""


# Where a run's work is done, by which engines and in what portions. None of it changes what is learned, except where a
# docstring says so.


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
    rollout_batch: Count = Field(default=512, title="Max concurrent completions")
    """Most completions sampled side by side."""
    rollout_tokens: Count = Field(default=131_072, title="Tokens held while sampling, at most")
    """Most tokens, of prompts and completions together, that the local sampler holds keys and values of at once.
    Changes memory and speed, not the result."""
    training: Literal["single", "deepspeed"] = Field(default="single", title="Trainer")
    """What learns: plain PyTorch, where every device holds all weights, or DeepSpeed, where they are divided."""
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    """With training: deepspeed."""
    one_step_off: bool = Field(default=False, title="Overlap sampling and training (one step off-policy)")
    """Sample the next step's completions while the policy learns from this step's. They are then one update old, which
    the ratio to the policy that sampled them corrects. Changes the result."""
    micro_batch_tokens: Count = Field(default=16384, title="Max tokens per micro-batch")
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
    watchdog_seconds: NotNegative = Field(default=1800.0, title="Stall warning after (s)")
    """A warning names what the run waits for when a phase has reported nothing for so long; 0 never."""


class RunConfig(StageConfig):
    """Of a GRPO run."""

    kind: ClassVar[Kind] = "grpo"

    name: RunName = "run"
    """What people call the run."""
    preset: str | None = None
    """Paper whose settings apply wherever a field is not given; differences from it are shown and recorded."""
    model: ModelConfig
    """The base model, which is where the policy starts."""
    data: DataConfig
    """Problems to train on."""
    reward: RewardConfig
    """What completions are scored by."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """From rewards to the gradient."""
    optim: OptimConfig = OptimConfig()
    """The optimiser and the length of the run."""
    engine: EngineConfig = EngineConfig()
    """Where and in what portions the work is done."""
    eval: EvalConfig = EvalConfig()
    """Held-out accuracy and suites, before, while and after training."""
    traces: TracesConfig = TracesConfig()
    """Which samples are kept."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    """Which weights are kept."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Start of every random choice of the run."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if not self.eval.has_something and (self.eval.before or self.eval.after):
            raise Conflict(
                "nothing_to_evaluate_on",
                "nothing to evaluate on: give eval.path or eval.holdout or eval.suites, or switch eval.before and "
                "eval.after off",
                field="eval.holdout",
            )
        if (conflict := run_refusal(self)) is not None:
            raise conflict
        return self

    # ------------------------------------------------------------------ derived

    @property
    def steps(self) -> int:
        return self.optim.steps

    @property
    def longest_sequence(self) -> int:
        """Tokens, prompt and completion together."""
        return self.data.max_prompt_tokens + self.sampling.max_completion_tokens

    @property
    def completions_per_step(self) -> int:
        return self.sampling.group_size * self.sampling.prompts_per_step

    @property
    def eval_max_completion_tokens(self) -> int:
        return self.eval.max_completion_tokens or self.sampling.max_completion_tokens

    @property
    def best_by(self) -> str:
        """What decides the best checkpoint, and early stopping: a suite that is evaluated while training, `heldout`, or
        `reward`."""
        better = (name for name in self.eval.during_suites if self.eval.higher_is(name) == "better")
        return self.checkpoints.best_by or next(better, REWARD)

    @property
    def heldout_reward(self) -> RewardConfig:
        """What held-out problems are judged by."""
        return self.eval.reward or self.reward
