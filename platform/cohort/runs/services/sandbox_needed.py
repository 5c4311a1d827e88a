"""Refuses what would run code that a person or a model wrote, where no node could keep it apart.

Said when it is asked for, with the fix, and not after an hour in the queue. The trainer refuses too, whatever was
thought here: a sandbox may break after its worker's self-test.
"""

from cohort.runs.selectors.sandboxes import no_sandbox
from grpo_core.errors import ConfigError, FieldProblem


def sandbox_demanded(*, what: str, field: str = "reward") -> None:
    """Raises ConfigError at `field` when no node that is registered could keep code apart. `what`: the run, the try."""
    if why := no_sandbox():
        raise ConfigError(
            f"{what} needs a sandbox, and no node has one that works",
            (
                FieldProblem(
                    field,
                    f"the reward runs code that a person or a model wrote, and no node has a sandbox that works. {why}",
                ),
            ),
        )
