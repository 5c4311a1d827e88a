"""Held-out problems judged by the reward that trained: a policy that exploits the reward is right there too. So every
place that shows such an accuracy says so, with what the newest probe of that reward measured."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.lab.gate import gate
from cohort.lab.models import VerifierProbe
from cohort.runs.models import Run
from grpo_core.config.kinds import judge_of, reward_of


@dataclass(frozen=True, slots=True)
class TrainingRewardJudge:
    """What is known of a training reward that judges held-out problems too."""

    wrong: int | None
    """Wrong answers that its newest probe tried; None: never probed."""
    paid: int | None
    """Of these, how many it rewarded."""

    @property
    def text(self) -> str:
        if not self.wrong:
            return "by the training reward, never probed" if self.wrong is None else "by the training reward"
        return f"by the training reward; probe: {self.paid:,} of {self.wrong:,} wrong answers rewarded"

    @property
    def figures(self) -> dict[str, int] | None:
        return None if self.wrong is None or self.paid is None else {"wrong": self.wrong, "paid": self.paid}


def training_reward_judge(run: Run) -> TrainingRewardJudge | None:
    """None where the run has no held-out problems, or another verifier judges them. At most one query."""
    config = run.parsed_config
    reward = reward_of(config)
    if reward is None or not config.eval.has_heldout or judge_of(config) != reward:
        return None
    probe = gate(run.verifier_version, run.dataset).probe
    return TrainingRewardJudge(None, None) if probe is None else _of_report(probe.report)


def _of_report(report: Mapping[str, Any]) -> TrainingRewardJudge:
    shares = report["false_positive"]
    return TrainingRewardJudge(shares["n"], shares["mistakes"])


Rewarded = tuple[int, int | None]
"""Ids of a reward's version and of the dataset that it rewards on."""


def training_reward_judges(rewards: Iterable[Rewarded]) -> dict[Rewarded, TrainingRewardJudge]:
    """What is known of each, by the probe that `gate` takes. One query."""
    wanted = set(rewards)
    newest: dict[int, TrainingRewardJudge] = {}
    newest_of: dict[Rewarded, TrainingRewardJudge] = {}
    probes = VerifierProbe.objects.filter(version__in={version for version, _ in wanted}).order_by("id")
    for version, dataset, shares in probes.values_list("version_id", "dataset_id", "report__false_positive"):
        newest[version] = newest_of[version, dataset] = _of_report({"false_positive": shares})
    unprobed = TrainingRewardJudge(None, None)
    judges: dict[Rewarded, TrainingRewardJudge] = {}
    for reward in wanted:
        own = newest_of.get(reward) if reward[1] is not None else None
        judges[reward] = own or newest.get(reward[0], unprobed)
    return judges
