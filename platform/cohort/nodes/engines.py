"""Which packages a run's engine needs on its node, and what to do where one is missing.

A node says what it has with its versions: `deepspeed` and `vllm` of the environment its trainers run in, `vllm-server`
of the one that servers of vLLM are started from: the one that COHORT_VLLM_PYTHON names, without it the trainers'.
"""

from collections.abc import Collection, Iterable, Mapping

from cohort.nodes.models import Node
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError, FieldProblem

COLOCATED, SERVER, DEEPSPEED = "vllm", "vllm-server", "deepspeed"
WORDS = {COLOCATED: "vLLM beside the trainer", SERVER: "vLLM", DEEPSPEED: "DeepSpeed"}
FIELDS = {COLOCATED: "engine.rollout", SERVER: "engine.rollout", DEEPSPEED: "engine.training"}
"""Where the run form says that nobody has it."""
_FIXES = {
    COLOCATED: "install vLLM in the worker's own environment, or take engine.vllm.place: server",
    SERVER: "make an environment with vLLM and name its interpreter in COHORT_VLLM_PYTHON",
    DEEPSPEED: "install the package with its extra deepspeed in the worker's environment",
}


def packages_needed(config: RunConfig) -> list[str]:
    """What a node must have to take the run."""
    engine, packages = config.engine, []
    if engine.rollout == "vllm":
        packages.append(COLOCATED if engine.vllm.place == "colocated" else SERVER)
    if engine.training == "deepspeed":
        packages.append(DEEPSPEED)
    return packages


def packages_of(versions: Mapping[str, str]) -> frozenset[str]:
    """Of those that engines need, what a node with these versions has."""
    return frozenset(name for name in WORDS if versions.get(name))


def missing(needed: Iterable[str], having: Collection[str]) -> list[str]:
    return [name for name in needed if name not in having]


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
    return "; ".join(f"{node.name}: {_fix_on(node, name)}" for node in nodes)


def _fix_on(node: Node, name: str) -> str:
    if not node.info:
        return "its worker has not said what it has: start a worker there"
    return _FIXES.get(name, "install it")


def _versions(node: Node) -> Mapping[str, str]:
    """Reported by the node, so its shape is not taken for granted."""
    versions = node.info.get("versions") if node.info else None
    return versions if isinstance(versions, dict) else {}


def gpus_needed(config: RunConfig) -> int:
    """GPUs that a node must have to take the run, those of a vLLM server with the trainer's; 0 where one GPU would be
    used but a CPU does as well."""
    engine = config.engine
    served = engine.vllm.devices if engine.rollout == "vllm" and engine.vllm.place == "server" else 0
    if engine.device == "cpu" or (engine.device == "auto" and engine.devices == 1 and not served):
        return 0
    return engine.devices + served


def require_engines(packages: Iterable[str]) -> None:
    """Raises ConfigError at the field that asks for what no registered node has."""
    problems = []
    for name in packages:
        if why := no_node_has(name):
            problems.append(FieldProblem(FIELDS[name], f"no node has {WORDS[name]}. {why}"))
    if problems:
        raise ConfigError("no node can run this engine", tuple(problems))
