"""Which packages and which sandbox a run needs on its node, and what to do where one is missing.

A node reports packages with versions: `deepspeed` and `vllm` of the environment its trainers run in, `vllm-server`
of the one that servers of vLLM are started from: the one that COHORT_VLLM_PYTHON names, without it the trainers'.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cohort.nodes.models import Node
from grpo_core.config.kinds import AnyConfig
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.sandbox.report import Report

# Which nodes can sandbox code, by their workers' last self-tests.
#
# A report comes from a machine that runs untrusted code: one that cannot be read counts as missing, with the reason.

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
    """Why no node could sandbox code, each with its fix, as one sentence; empty when one can."""
    sandboxes = [sandbox_of(node) for node in Node.objects.filter(revoked_at=None).order_by("name")]
    if any(sandbox.works for sandbox in sandboxes):
        return ""
    if not sandboxes:
        return "no node is registered; start a worker on a machine where bubblewrap works (docs/sandbox.md)"
    return "; ".join(f"{sandbox.node.name}: {sandbox.fix}" for sandbox in sandboxes)


def require_sandbox(*, what: str, field: str = "reward") -> None:
    """Raises ConfigError at `field` when no registered node could sandbox code. `what`: the run, the try."""
    if why := no_sandbox():
        code = f"the reward runs code that a person or a model wrote, and no node has a sandbox that works. {why}"
        raise ConfigError(f"{what} needs a sandbox, and no node has one that works", (FieldProblem(field, code),))


COLOCATED, SERVER, DEEPSPEED = "vllm", "vllm-server", "deepspeed"
WORDS = {COLOCATED: "vLLM next to the trainer", SERVER: "vLLM", DEEPSPEED: "DeepSpeed"}
FIELDS = {COLOCATED: "engine.rollout", SERVER: "engine.rollout", DEEPSPEED: "engine.training"}
"""The field at which the run form reports that no node has it."""
_FIXES = {
    COLOCATED: "install vLLM in the worker's own environment, or take engine.vllm.place: server",
    SERVER: "make an environment with vLLM and name its interpreter in COHORT_VLLM_PYTHON",
    DEEPSPEED: "install the package with its extra deepspeed in the worker's environment",
}


def packages_needed(config: AnyConfig) -> list[str]:
    """What a node must have to take the run."""
    engine, packages = config.engine, []
    if engine.rollout == "vllm":
        packages.append(COLOCATED if engine.vllm.place == "colocated" else SERVER)
    if engine.training == "deepspeed":
        packages.append(DEEPSPEED)
    return packages


def packages_of(versions: Mapping[str, str]) -> frozenset[str]:
    """The packages, among those that engines need, of a node with these versions."""
    return frozenset(name for name in WORDS if versions.get(name))


def fix(names: Iterable[str]) -> str:
    """What to do on a node that lacks these: "has no DeepSpeed: install …"."""
    return "; ".join(f"has no {WORDS.get(name, name)}: {_FIXES.get(name, 'install it')}" for name in names)


def no_node_has(name: str) -> str:
    """Why no node could take a run that needs it, each with its fix; empty when one that is registered has it."""
    nodes = list(Node.objects.filter(revoked_at=None).order_by("name"))
    if any(name in packages_of(_versions(node)) for node in nodes):
        return ""
    if not nodes:
        return "no node is registered; start a worker on a machine that has it (docs/operations.md)"
    unknown, lacking = "its worker has not said what it has: start a worker there", _FIXES.get(name, "install it")
    return "; ".join(f"{node.name}: {lacking if node.info else unknown}" for node in nodes)


def _versions(node: Node) -> Mapping[str, str]:
    """Reported by the node, so its shape is not taken for granted."""
    versions = node.info.get("versions") if node.info else None
    return versions if isinstance(versions, dict) else {}


def gpus_needed(config: AnyConfig) -> int:
    """GPUs that a node must have to take the run, those of a vLLM server with the trainer's; 0 where one GPU would be
    used but a CPU does as well."""
    engine = config.engine
    served = engine.vllm.devices if engine.rollout == "vllm" and engine.vllm.place == "server" else 0
    if engine.device == "cpu" or (engine.device == "auto" and engine.devices == 1 and not served):
        return 0
    return engine.devices + served


def require_engines(packages: Iterable[str]) -> None:
    """Raises ConfigError at the field that requires what no registered node has."""
    problems = []
    for name in packages:
        if why := no_node_has(name):
            problems.append(FieldProblem(FIELDS[name], f"no node has {WORDS[name]}. {why}"))
    if problems:
        raise ConfigError("no node can run this engine", tuple(problems))
