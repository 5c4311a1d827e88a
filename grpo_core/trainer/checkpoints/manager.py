"""Decides when a checkpoint is cut and which ones stay, and gathers what goes into one.

Checkpoints are cut only between steps. While a step is under way its beginning is remembered, so that a request to stop
can still be met with a checkpoint of the last whole step, as long as the step's update has moved no weight.
"""

import base64
import json
import random
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from grpo_core.config.evaluation import REWARD
from grpo_core.config.kinds import AnyConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.files.checkpoint import PINNED, pruning, remove_folder, step_folder, step_folders
from grpo_core.files.run_folder import RunDir
from grpo_core.records.types import CheckpointRemoved, Manifest
from grpo_core.runtime.clock import timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.progress import Progress
from grpo_core.runtime.watchdog import waiting
from grpo_core.trainer.checkpoints.state import Best, DrawState, Evaluated, RandomState, RunState, existing_best
from grpo_core.trainer.checkpoints.write import save_state
from grpo_core.trainer.manifest import inputs_of
from grpo_core.trainer.metrics import Counts
from grpo_core.trainer.sampled import Position
from grpo_core.training.base import Training

BEST_OVER = 10
"""Steps whose mean training reward decides which checkpoint is the best, where it decides."""


class Sampler(Protocol):
    """What decides the data of the next step: problems and groups, or rows of a file."""

    def position(self) -> Position:
        """What the next step takes from here; cheap."""

    def serialize(self, position: Position) -> DrawState:
        """The position as a checkpoint holds it."""

    def restore(self, state: DrawState) -> None:
        """Continue from `state`."""


@dataclass(frozen=True)
class _Mark:
    """What sampling the next step would change."""

    step: int
    seq: int
    position: Position
    random: RandomState


@dataclass(eq=False)
class CheckpointManager:
    """Cuts and keeps the checkpoints of one run. With several ranks, every rank has one and makes the same calls."""

    config: AnyConfig
    run_dir: RunDir | None
    """None on every rank but the first."""
    _: KW_ONLY
    training: Training
    sampler: Sampler
    counts: Counts
    """The trainer's own."""
    steps: int
    """Planned."""
    ranks: Ranks
    device: torch.device
    manifest: Manifest
    base: Path
    """Folder that the config's relative paths start from."""
    progress: Progress

    newest: int | None = None
    """Step of the newest checkpoint; None before the first."""

    def __post_init__(self) -> None:
        self._recent: tuple[float, ...] = ()
        self._best: Best | None = None
        self._good: int | None = None
        self.evaluated = Evaluated()
        """Carried through checkpoints for the evaluations while training."""
        self._mark: _Mark | None = None
        self._cost: float | None = None
        """Seconds that writing the last one took; None while none of this process holds a whole step."""
        self._written_at = 0.0

    def begin(self) -> None:
        """A run that starts from nothing: the checkpoint before its first step."""
        self._remember(0)
        self._cut()
        self._cost = None  # without an optimiser it is no measure of the next

    def restore(self, state: RunState) -> None:
        """A resumed run: take over sampler position, random generators and best checkpoint."""
        self.sampler.restore(state.draw)
        if self.ranks.rank < len(state.random):
            set_random_state(state.random[self.ranks.rank], self.device)
        self._recent = state.recent
        self._best = existing_best(state, self.run_dir.checkpoints) if self.run_dir is not None else state.best
        if self._best is not None and self._best.by != self.config.best_by:
            self._best = None
        self._good = state.good
        self.evaluated = state.evaluated
        if self.steps != state.steps_planned:
            self.evaluated = self.evaluated.model_copy(update={"since": 0})  # an extended run has its patience again
        self.newest = state.step
        self._remember(state.step)

    def evaluate(self, step: int, score: float) -> bool:
        """The policy after `step` has this score by `checkpoints.best_by`. Whether it is the best so far; then the
        checkpoint of the step, which `after` or `begin` cuts, is kept as such."""
        by = self.config.best_by
        sign = -1 if self.config.eval.higher_is(by) == "worse" else 1
        if self._best is not None and sign * (score - self._best.value) <= 0:
            return False
        self._best = Best(step=step, by=by, value=score)
        return True

    def after(self, step: int, reward: float | None, *, last: bool = False) -> None:
        """A step is whole and recorded, with this mean reward. `last`: none comes after it. Raises DiskFullError,
        CheckpointError."""
        if reward is not None:
            self._recent = (*self._recent, reward)[-BEST_OVER:]
        self._remember(step)
        # One rank's clock decides, so that all do the same.
        if self.ranks.any(self.ranks.main and (last or self._due(step))):
            self._cut()

    @property
    def best(self) -> Best | None:
        """The best so far."""
        return self._best

    def before_leaving(self) -> None:
        """The run is asked to stop: keep the last whole step if no checkpoint does and its state is unchanged."""
        mark = self._mark
        if mark is not None and self.newest != mark.step and self.training.changed_in <= mark.step:
            self._cut()

    @property
    def good(self) -> int | None:
        """Step of the checkpoint from before a ruinous update; None while there was no such update."""
        return self._good

    def keep_until(self, step: int) -> int | None:
        """Keep the newest checkpoint of at most this step: a later update ruined the policy. Its step; None where there
        is none. It replaces a later one as the best."""
        if self.run_dir is None:
            return None
        good = [own for own in step_folders(self.run_dir.checkpoints) if own <= step]
        if not good:
            return None
        self._good = max(good)
        if self._best is not None and self._best.step > step:
            self._best = self._best.model_copy(update={"step": self._good})
        return self._good

    @property
    def behind(self) -> bool:
        """Whether the last whole step is in no checkpoint."""
        return self._mark is not None and self.newest != self._mark.step

    # ------------------------------------------------------------------ when

    def _due(self, step: int) -> bool:
        checkpoints = self.config.checkpoints
        if checkpoints.best and self._best is not None and self._best.step == step:
            return True
        if step == self.steps or (self._cost is None and checkpoints.every is None):
            return True
        if checkpoints.every is not None:
            return step % checkpoints.every == 0
        assert self._cost is not None
        return self._cost <= checkpoints.cost * (time.monotonic() - self._written_at)

    # ------------------------------------------------------------------ cutting one

    def _remember(self, step: int) -> None:
        self._mark = _Mark(
            step,
            self.run_dir.seq if self.run_dir is not None else 0,
            self.sampler.position(),
            take_random_state(self.device),
        )

    def _cut(self) -> None:
        mark = self._mark
        assert mark is not None
        with timed("checkpoint"), waiting("writing a checkpoint"):
            states = self.ranks.gather(mark.random.model_dump(mode="json"))
            if self.config.best_by == REWARD and (best := self._best_by_reward(mark.step)) is not None:
                self._best = best
            is_best = self.config.checkpoints.best and self._best is not None and self._best.step == mark.step
            parts = self.training.state()
            self.ranks.together(lambda: self._write(mark, states, parts, best=is_best))
            self.newest = mark.step

    def _write(
        self, mark: _Mark, states: list[dict[str, object]], parts: Mapping[str, Mapping[str, Tensor]], *, best: bool
    ) -> None:
        """On the first rank: write the checkpoint, record it, remove what it makes needless."""
        if self.run_dir is None:
            return
        state = RunState(
            step=mark.step,
            steps=self.steps,
            seq=mark.seq,
            config=self.config.to_dict(),
            config_digest=self.manifest.config_digest,
            inputs=inputs_of(self.manifest),
            base=str(self.base),
            kl_coef=self.training.kl_coef,
            draw=self.sampler.serialize(mark.position),
            totals=dict(self.counts.sums),
            informative=self.counts.informative,
            held=dict(self.counts.held),
            history=self.counts.history,
            good=self._good,
            seconds=self.counts.seconds(),
            recent=self._recent,
            best=self._best,
            evaluated=self.evaluated,
            random=tuple(RandomState.model_validate(state) for state in states),
            threads=self.manifest.platform["threads"],
            device=self.manifest.platform["device"],
            packages=self.manifest.packages,
            code=self.manifest.code,
        )
        folder = self.run_dir.checkpoints / step_folder(mark.step)
        saved = save_state(folder, parts, state, run_folder=self.run_dir.path, best=best)
        self._cost, self._written_at = saved.seconds, time.monotonic()
        self.run_dir.append(saved)
        self.run_dir.commit()
        fault("checkpoint:recorded")
        self._prune(self.run_dir)

    def _best_by_reward(self, step: int) -> Best | None:
        """The new best, if this is one. Before ten steps there is too little to compare."""
        if not self.config.checkpoints.best or len(self._recent) < BEST_OVER:
            return None
        mean = sum(self._recent) / BEST_OVER
        return Best(step=step, value=mean) if self._best is None or mean > self._best.value else None

    # ------------------------------------------------------------------ which stay

    def _prune(self, run_dir: RunDir) -> None:
        """Remove all but the newest, the best, the one before a ruinous update, and those pinned."""
        with pruning(run_dir.checkpoints) as may:
            if may:  # else the worker is just writing which must stay, and the next time does
                self._remove(run_dir)
        run_dir.commit()
        fault("prune:recorded")

    def _remove(self, run_dir: RunDir) -> None:
        try:
            pinned = read_pinned(run_dir.checkpoints)
        except ValueError as error:
            self.progress.line(f"no checkpoint was removed: {error}")
            return
        folders = step_folders(run_dir.checkpoints)
        stay = {*list(folders)[-self.config.checkpoints.keep :], *pinned}
        best = self._best.step if self.config.checkpoints.best and self._best is not None else None
        stay |= {step for step in (best, self._good) if step is not None}
        for step, folder in folders.items():
            if step not in stay:
                remove_folder(folder)
                run_dir.append(CheckpointRemoved(step=step, path=folder.relative_to(run_dir.path).as_posix()))


def read_pinned(checkpoints: Path) -> set[int]:
    """Steps whose checkpoints must stay. Raises ValueError when the file is no list of them."""
    path = checkpoints / PINNED
    if not path.exists():
        return set()
    steps = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(steps, list) or not all(isinstance(step, int) for step in steps):
        raise ValueError(f"{path} is not a list of steps")
    return set(steps)


def take_random_state(device: torch.device) -> RandomState:
    """The generators of python, numpy, torch and, on a GPU, of the device."""
    _, words, gauss = random.getstate()
    known = np.random.get_state(legacy=False)
    assert isinstance(known, dict)
    assert known["bit_generator"] == "MT19937"
    return RandomState(
        python=list(words),
        python_gauss=gauss,
        numpy=[*known["state"]["key"].tolist(), int(known["state"]["pos"])],
        numpy_gauss=float(known["gauss"]) if known["has_gauss"] else None,
        torch=_encode(torch.get_rng_state()),
        device=_encode(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
    )


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Set the generators. That of a GPU is left alone where the state was taken on a CPU."""
    random.setstate((3, tuple(state.python), state.python_gauss))
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": np.array(state.numpy[:-1], dtype=np.uint32), "pos": state.numpy[-1]},
            "has_gauss": int(state.numpy_gauss is not None),
            "gauss": state.numpy_gauss or 0.0,
        }
    )
    torch.set_rng_state(_decode(state.torch))
    if device.type == "cuda" and state.device is not None:
        torch.cuda.set_rng_state(_decode(state.device), device)


def _encode(state: Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
