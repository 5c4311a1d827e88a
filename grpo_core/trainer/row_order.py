"""Which rows of a dataset a step learns from: each epoch is a new shuffle of all of them, by seed. What runs draw from
that learn from given rows and sample nothing."""

from dataclasses import dataclass

from grpo_core.trainer.checkpoints.state import DrawState
from grpo_core.trainer.sampled import Position
from grpo_core.trainer.sampling import prompt_order


@dataclass(eq=False)
class RowOrder:
    """A `checkpoints.manager.Sampler` whose state is how many rows were taken."""

    count: int
    """Rows of the dataset."""
    seed: int

    def __post_init__(self) -> None:
        self.drawn = 0
        self._order = prompt_order(self.count, self.seed)

    def draw(self, rows: int) -> list[int]:
        """Indices of the next rows."""
        self.drawn += rows
        return [next(self._order) for _ in range(rows)]

    @property
    def epoch(self) -> float:
        """How often all rows were taken."""
        return self.drawn / self.count

    # ------------------------------------------------------------------ into a checkpoint and back

    def position(self) -> Position:
        """See `Sampler`."""
        return Position(self.drawn, ())

    def serialize(self, position: Position) -> DrawState:
        """See `Sampler`."""
        return DrawState(drawn=position.drawn)

    def restore(self, state: DrawState) -> None:
        """See `Sampler`."""
        self.drawn = state.drawn
        self._order = prompt_order(self.count, self.seed, start=state.drawn)
