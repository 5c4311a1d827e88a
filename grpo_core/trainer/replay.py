"""Does recorded steps again: from a checkpoint, or from the base model, through the very loop that trains.

Nothing is evaluated, recorded or cut: each step's groups, metrics and weights go to the caller.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import torch

from grpo_core.config.run import RunConfig
from grpo_core.errors import CheckpointError
from grpo_core.files.checkpoint import verify_checkpoint
from grpo_core.files.disk import raise_when_full
from grpo_core.records.types import Manifest
from grpo_core.replay.compare import ReplayedStep
from grpo_core.runtime.clock import Clock
from grpo_core.trainer.checkpoints.state import RunState, read_state
from grpo_core.trainer.checkpoints.write import load_parts, write_tensors
from grpo_core.trainer.groups import step_groups
from grpo_core.trainer.grpo import GrpoTrainer
from grpo_core.trainer.inputs import load_inputs
from grpo_core.trainer.learn import Learned, count_step
from grpo_core.trainer.manifest import inputs_of
from grpo_core.trainer.sampled import StepBatch
from grpo_core.trainer.telemetry import settling


@dataclass(eq=False)
class Replay(GrpoTrainer):
    """One stretch of steps. `config` evaluates nothing (`replay_config`)."""

    _: KW_ONLY
    start: Path | None = None
    """The checkpoint after the step before the first; None begins with the base model."""
    last: int = 0
    """Step to end after."""
    hashed: Collection[int] = ()
    """Steps after which the weights are hashed."""
    cache: Path | None = None
    """Folder of what a judge answered."""
    began: Callable[[Manifest], None] = lambda manifest: None
    """Called once everything is loaded, before a step is done; may raise to refuse."""
    done: Callable[[ReplayedStep], None] = lambda step: None
    """Called after every step."""

    def replay(self) -> None:
        """Raises a GrpoError where something is missing, and whatever `began` raises."""
        config = self.config
        if config.engine.threads is not None:
            torch.set_num_threads(config.engine.threads)
        with ExitStack() as opened:
            inputs = load_inputs(config, base=self.base, device=self.ranks.device, cache=self._own_cache(opened))
            self._use(inputs, opened)
            self._replay(opened)

    def _own_cache(self, opened: ExitStack) -> Path | None:
        """A copy, to which new answers go: the run's folder is only read."""
        if self.cache is None:
            return None
        copy = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="grpo-replay-")))
        with raise_when_full(copy, f"a copy of {self.cache}"):
            return Path(shutil.copytree(self.cache, copy / self.cache.name))

    def _replay(self, opened: ExitStack) -> None:
        manifest = self._manifest()
        self.began(manifest)
        self._set_up(manifest, opened)
        if self.start is not None:
            self._take_over(self.start, manifest)
        first = self._counts.steps + 1
        self._clock = Clock(settle=settling(self.policy.device))
        self.progress.begin("steps", self.last, unit="step", done=self._counts.steps)
        with self._clock.running():
            for step in range(first, self.last + 1):
                self._stop_if_asked()
                self._step(step)

    def _take_over(self, folder: Path, manifest: Manifest) -> None:
        verify_checkpoint(folder)
        state = read_state(folder)
        for what, digest in inputs_of(manifest).items():
            if digest is not None and state.inputs.get(what) != digest:
                raise CheckpointError(f"{what} is not what {folder} was trained with")
        self._training.restore(load_parts(folder), kl_coef=state.kl_coef, step=state.step)
        self._restore(state)

    def _restore(self, state: RunState) -> None:
        super()._restore(state)
        self._counts.steps = state.step

    def _record(self, step: int, batch: StepBatch, learned: Learned, seconds: dict[str, float]) -> float | None:
        """Hands the step to the caller in place of writing it."""
        groups = step_groups(
            batch, learned.advantages, self.config, step=step, masked=learned.masked, clipped=learned.clipped
        )
        metrics = count_step(self._counts, step, groups, batch, learned, self.config)
        self._counts.steps = step
        weights = self._hashes() if step in self.hashed else {}
        self.progress.advance(step, f"{seconds['total']:.3g} s/step")
        self.done(ReplayedStep(step, metrics, [*groups.trained, *groups.discarded, *groups.left], weights))
        return None

    def _hashes(self) -> dict[str, str]:
        """SHA-256 of the files that a checkpoint would hold now, by part."""
        digests = {}
        with self._training.whole(), tempfile.TemporaryDirectory(prefix="grpo-replay-") as folder:
            for name, tensors in self._training.state().items():
                path = Path(folder) / name
                with raise_when_full(path.parent, f"{name} after step {self._counts.steps}, which is hashed there"):
                    write_tensors(path, tensors)
                with path.open("rb") as handle:
                    digests[name] = hashlib.file_digest(handle, "sha256").hexdigest()
                path.unlink()
        return digests


def replay_config(config: RunConfig, *, threads: int | None) -> RunConfig:
    """The same training, of which nothing is evaluated and nothing kept. Where held-out problems are split off from the
    training file, they still are. One process does it all, with as
    many `threads` as the run had."""
    whole = config.to_dict()
    holdout = 0 if config.eval.path is not None else config.eval.holdout
    evaluations = {"holdout": holdout, "before": False, "after": False, "cost": 0.0}
    kept = {"best": False, "final": False, "every": config.optim.steps}
    traces = {**whole["traces"], "tokens": ["none"]}
    engine = {**whole["engine"], "devices": 1, "nodes": 1}
    engine["threads"] = engine["threads"] or threads
    changed = {"eval": evaluations, "checkpoints": kept, "traces": traces, "engine": engine}
    return RunConfig.from_whole({**whole, **changed})
