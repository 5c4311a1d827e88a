"""A reward from a list of components, and its probe."""

from collections.abc import Sequence
from typing import Any

from grpo_core.config.reward import RewardConfig
from grpo_core.data.problem import Problem
from grpo_core.probe.cases.problems import problems_builtin
from grpo_core.probe.report import ProbeReport
from grpo_core.probe.run import probe_rubric
from grpo_core.rewards.rubric import Rubric
from grpo_core.rewards.runner import Runner


def component(kind: str, *, weight: float = 1.0, **params: Any) -> dict[str, Any]:
    return {"name": kind, "kind": kind, "weight": weight, "params": params}


def rubric_of(*components: dict[str, Any], **rest: Any) -> Rubric:
    return Rubric(RewardConfig.model_validate({"components": components, **rest}))


def probed(rubric: Rubric, problems: Sequence[Problem] | None = None, **options: Any) -> ProbeReport:
    problems_probed = problems_builtin(rubric) if problems is None else problems
    with Runner(rubric) as runner:
        return probe_rubric(rubric, problems_probed, runner=runner, **options)


def paid(report: ProbeReport) -> set[str]:
    """Names of the classes of wrong completions of which one was paid."""
    return {result.name for result in report.classes if result.family == "false_positive" and result.paid}
