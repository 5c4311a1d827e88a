"""What a checkpoint holds besides its tensors: one JSON file, state.json, with a type. Loads no torch.

Together they are everything that the next step depends on. What can be worked out from config and step is not in it:
the learning rate, and every random stream of sampling, which begins anew at each step from (seed, step, index).
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field

from grpo_core.config.evaluation import REWARD
from grpo_core.files.checkpoint import read_state_as, step_folder
from grpo_core.monitors.history import History
from grpo_core.records.types import Body, ComponentScore, Discard, FinishReason


class PendingCompletion(Body):
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    entropy: float | None
    text: str
    reward: float | None
    components: dict[str, ComponentScore]


class PendingGroup(Body):
    """A group that was sampled and scored but not trained on yet (dynamic sampling's surplus, engine.one_step_off)."""

    problem_index: int
    """Of its problem, among the training problems."""
    sampled_at: int
    completions: tuple[PendingCompletion, ...]


class PendingDiscard(Body):
    group: int
    """Its index among the draw's groups."""
    reason: Discard


class PendingBatch(Body):
    """A whole step's groups that were drawn while the policy learned from the step before (engine.one_step_off)."""

    groups: tuple[PendingGroup, ...]
    """The older ones that the step takes over (dynamic sampling's surplus), then all that were sampled for it."""
    older: int
    kept: tuple[int, ...]
    """Indices in `groups` of those to train on, in their order."""
    discarded: tuple[PendingDiscard, ...]
    batches: int
    surplus: int
    seconds: dict[str, float]
    """Wall time that drawing took, by part."""


class DrawState(Body):
    """The position in the order of problems, and what is left over."""

    drawn: int
    """Problems drawn since the run began; each epoch has its own order, by seed."""
    surplus: tuple[PendingGroup, ...] = ()
    ahead: PendingBatch | None = None
    """The next step's groups, where they are drawn already."""


class RandomState(Body):
    """The global generators of one rank. Training draws from separate streams; these are for what libraries draw."""

    python: list[int]
    """Mersenne twister: 624 words and the position in them."""
    python_gauss: float | None
    numpy: list[int]
    """The same, of numpy's global generator."""
    numpy_gauss: float | None
    torch: str
    """Base64 of the CPU generator's state."""
    device: str | None
    """Base64 of the GPU generator's state; null on a CPU."""


class Best(Body):
    """The best checkpoint so far."""

    step: int
    by: str = REWARD
    """What decides: a suite, `heldout`, or `reward`."""
    value: float = Field(validation_alias=AliasChoices("value", "reward"))
    """Its score after this step, or the mean reward of the ten steps before it, as which older checkpoints have it."""


class Evaluated(Body):
    """What evaluations while training depend on."""

    seconds: float = 0.0
    """That all of them took."""
    newest: float | None = None
    """That the next will take, by the newest; None before the first."""
    reference: float | None = None
    """Score that the next must be better than for `eval.patience`."""
    since: int = 0
    """Evaluations in a row that were not."""
    loss_before: float | None = None
    """The held-out loss before training, of a run that has one."""


class RunState(Body):
    """state.json. A field added from now on has a default, so that checkpoints written before it still load."""

    format: Literal[1] = 1
    step: int = Field(ge=0)
    """Steps whole in the checkpoint; the position in the learning-rate schedule too."""
    steps: int | None = None
    """Steps that were planned. Null in checkpoints written before it was kept, whose config says it."""
    inner_iteration: Literal[0] = 0
    """Updates of the next step that were done already: none ever, for checkpoints are cut only between steps. Inside a
    step the old log-probabilities and the gradient are half done, and repeating it gives the same."""
    seq: int
    """Newest record of the run directory that belongs to these steps."""
    config: dict[str, Any]
    config_digest: str
    inputs: dict[str, str | None]
    """SHA-256 of what the run is based on: weights, tokenizer, training and held-out problems."""
    base: str
    """Folder that the config's relative paths start from, on the machine that wrote this."""
    kl_coef: float
    """β as the adaptive controller left it."""
    draw: DrawState
    totals: dict[str, int]
    """Sums for the outcome."""
    informative: int
    """Groups so far with an advantage other than 0."""
    held: dict[str, int] = Field(default_factory=dict)
    """Code of a cause of the diagnosis → newest step in which it held."""
    history: History = Field(default_factory=History)
    """The steps that monitors look at."""
    good: int | None = None
    """Step of the checkpoint that is kept because a later update ruined the policy."""
    seconds: float
    """Wall time that went into these steps."""
    recent: tuple[float, ...]
    """Mean rewards of the last ten steps."""
    best: Best | None
    evaluated: Evaluated = Evaluated()
    random: tuple[RandomState, ...]
    """One for each rank; their number is the world size."""
    threads: int
    """CPU threads of the first rank."""
    device: str
    """Name of its GPU, or cpu."""
    packages: dict[str, str]
    code: dict[str, str | None] = Field(default_factory=dict)
    """Cohort's own version, commit and hash of the uncommitted difference, as the manifest has them. Empty in
    checkpoints written before it was kept."""

    @property
    def steps_planned(self) -> int:
        return int(self.steps if self.steps is not None else self.config["optim"]["steps"])


def existing_best(state: RunState, checkpoints: Path) -> Best | None:
    """The best checkpoint so far. Where `state` lies in `checkpoints` itself, None once the best is no longer there: a
    better one took its place, and was then found damaged."""
    best = state.best
    if best is None or not (checkpoints / step_folder(state.step)).is_dir():
        return best
    return best if (checkpoints / step_folder(best.step)).is_dir() else None


def read_state(folder: Path) -> RunState:
    """Read a checkpoint's state.json. Raises CheckpointError."""
    return read_state_as(RunState, folder)
