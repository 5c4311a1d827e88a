"""Which steps are done again, and from where."""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grpo_core.errors import RecordsError

_LABEL = "cohort-replay/1"
LARGEST_NUMBER = 2**63 - 1


def new_number() -> int:
    """A number for readers that have none, of nine digits so that it can be read out."""
    return secrets.randbelow(10**9)


def drawn_steps(steps: Collection[int], count: int, *, name: str, number: int) -> list[int]:
    """`count` different steps, in order. The i-th, from 0, is the one at index SHA-256(label LF name LF number LF i)
    modulo how many are left, of those left in order: anyone computes the same from the reader's number, and who made
    the records could not know it. Raises RecordsError where there are fewer."""
    left = sorted(steps)
    if count > len(left):
        raise RecordsError(f"{count} steps were asked for, and the records hold {len(left)}; ask for fewer")
    chosen = []
    for turn in range(count):
        digest = hashlib.sha256("\n".join([_LABEL, name, str(number), str(turn)]).encode()).digest()
        chosen.append(left.pop(int.from_bytes(digest) % len(left)))
    return sorted(chosen)


@dataclass(frozen=True)
class Stretch:
    """Steps that are done in one go."""

    start: int
    """The checkpoint after this step is loaded; at 0 without one the base model."""
    wanted: tuple[int, ...]
    """The steps to report, in order; those before them are done to get there."""

    @property
    def last(self) -> int:
        return self.wanted[-1]

    @property
    def cost(self) -> int:
        """Steps to do."""
        return self.last - self.start


def stretches(wanted: Sequence[int], starts: Collection[int]) -> list[Stretch]:
    """Each step from the newest start before it; those that share one are one stretch. 0, the base model, is always a
    start. A step after another goes on from that one where no start lies between them."""
    known = sorted({0, *starts})
    by_start: dict[int, list[int]] = {}
    for step in sorted(set(wanted)):
        by_start.setdefault(max(start for start in known if start < step), []).append(step)
    return [Stretch(start, tuple(steps)) for start, steps in by_start.items()]
