"""Which nodes can run code apart, by what their workers' self-tests last said.

A report comes from a machine that runs untrusted code: one that cannot be read counts as none, and says so.
"""

from dataclasses import dataclass

from cohort.nodes.models import Node
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.sandbox.report import Report

_NOT_REPORTED = "its worker has not said whether its sandbox works: start a worker of this version there"


@dataclass(frozen=True)
class NodeSandbox:
    """The result of one node's self-test."""

    node: Node
    report: Report | None
    """None: never reported, or reported so that it cannot be read."""
    fault: str = ""
    """Why its report cannot be read."""

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
        return self.fault or _NOT_REPORTED


def sandbox_of(node: Node) -> NodeSandbox:
    report = node.info.get("sandbox_report") if node.info else None
    if report is None:
        return NodeSandbox(node, None)
    try:
        return NodeSandbox(node, Report.from_json(report))
    except ValueError as error:
        return NodeSandbox(node, None, f"what its worker said of its sandbox cannot be read: {error}")


def no_sandbox() -> str:
    """Why no node could run code apart, each with its fix, as one sentence; empty when one can."""
    sandboxes = [sandbox_of(node) for node in Node.objects.filter(revoked_at=None).order_by("name")]
    if any(sandbox.works for sandbox in sandboxes):
        return ""
    if not sandboxes:
        return "no node is registered; start a worker on a machine where bubblewrap works (docs/sandbox.md)"
    return "; ".join(f"{sandbox.node.name}: {sandbox.fix}" for sandbox in sandboxes)


def require_sandbox(*, what: str, field: str = "reward") -> None:
    """Raises ConfigError at `field` when no node that is registered could keep code apart. `what`: the run, the try."""
    if why := no_sandbox():
        code = f"the reward runs code that a person or a model wrote, and no node has a sandbox that works. {why}"
        raise ConfigError(f"{what} needs a sandbox, and no node has one that works", (FieldProblem(field, code),))
