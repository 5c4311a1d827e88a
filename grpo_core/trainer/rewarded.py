"""What kinds of run have in common whose completions a reward scores: their inputs, and what is recorded of them."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from grpo_core.config.kinds import ScoredConfig
from grpo_core.records.types import Event, Manifest, Record
from grpo_core.trainer.inputs import Inputs, answer_cache, load_inputs, loaded, reward_used
from grpo_core.trainer.manifest import build_manifest
from grpo_core.trainer.trainer import Trainer

S = TypeVar("S", bound=ScoredConfig)


@dataclass(eq=False)
class RewardedTrainer(Trainer[S], Generic[S]):
    """A run that samples completions of problems and scores them."""

    learning: ClassVar[bool] = True
    """Whether weights change, so that adapters, reference and critic are made."""

    _inputs: Inputs = field(init=False)

    def _load(self, opened: ExitStack) -> None:
        cache = answer_cache(self.ranks, self.run_dir.path if self.run_dir is not None else None)
        self._use(
            self.ranks.together(
                lambda: load_inputs(
                    self.config, base=self.base, device=self.ranks.device, learning=self.learning, cache=cache
                )
            ),
            opened,
        )

    def _use(self, inputs: Inputs, opened: ExitStack) -> None:
        self._inputs, self.policy = inputs, inputs.policy
        for runner in inputs.runners:
            opened.enter_context(runner)

    def _manifest(self) -> Manifest:
        inputs = self._inputs
        return build_manifest(
            self.config,
            inputs.policy,
            train=inputs.train_facts,
            heldout=inputs.heldout_facts,
            suites=inputs.suite_facts,
            overlap=self.ranks.together(lambda: inputs.overlap() if self.run_dir is not None else None),
            ranks=self.ranks.world,
            reward=inputs.reward_facts(),
            sandbox=inputs.runner.sandbox() or inputs.heldout_runner.sandbox(),
        )

    def _loaded(self) -> Iterable[Event]:
        return loaded(self._inputs, self.config)

    def _finished(self) -> Iterable[Record]:
        return reward_used(self.ranks.gather(self._inputs.reward_facts()))
