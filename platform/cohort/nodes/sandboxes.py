"""Which nodes can run code apart, by what their workers' self-tests last said.

A report comes from a machine that runs untrusted code: one that cannot be read counts as none, and says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cohort.nodes.models import Node
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.sandbox.report import Report

_UNTOLD = "its worker has not said whether its sandbox works: start a worker of this version there"


@dataclass(frozen=True)
class NodeSandbox:
    """What one node's self-test found."""

    node: Node
    report: Report | None
    """None: never told, or told so that it cannot be read."""
    fault: str = ""
    """Why what it told cannot be read."""

    @property
    def works(self) -> bool:
        return self.report is not None and self.report.works

    @property
    def words(self) -> str:
        return self.report.words if self.report is not None else ""

    @property
    def fix(self) -> str:
        """What to do about it; empty where it works."""
        if self.works:
            return ""
        if self.report is not None and self.report.fix:
            return self.report.fix
        return self.fault or _UNTOLD


def sandbox_of(node: Node) -> NodeSandbox:
    told = node.info.get("sandbox_report") if node.info else None
    if told is None:
        return NodeSandbox(node, None)
    try:
        return NodeSandbox(node, Report.from_json(told))
    except ValueError as error:
        return NodeSandbox(node, None, f"what its worker said of its sandbox cannot be read: {error}")


def sandboxes() -> list[NodeSandbox]:
    """Of every node that is not revoked, by name."""
    return [sandbox_of(node) for node in Node.objects.filter(revoked_at=None).order_by("name")]


def no_sandbox(found: Iterable[NodeSandbox] | None = None) -> str:
    """Why no node could run code apart, each with its fix, as one sentence; empty when one can."""
    told = sandboxes() if found is None else list(found)
    if any(one.works for one in told):
        return ""
    if not told:
        return "no node is registered; start a worker on a machine where bubblewrap works (docs/sandbox.md)"
    return "; ".join(f"{one.node.name}: {one.fix}" for one in told)


def require_sandbox(*, what: str, field: str = "reward") -> None:
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
