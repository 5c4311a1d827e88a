"""What a job of the kinds try and sample found, as its pages show it. Reads the stored result; scores nothing."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cohort.lab.models import LabJob
from cohort.web.lab.charts import HistogramDrawn, histogram_drawn
from grpo_core.config.reward import RewardConfig
from grpo_core.lab.result import LabResult, LabSample, group_signal
from grpo_core.stats.paired import nearly_equal

GROUPS_A_PAGE = 50

ERRORS = {
    "verifier": "its own code raised",
    "timeout": "killed at its deadline",
    "memory": "killed for taking too much memory",
    "output": "killed for printing too much",
    "value": "gave something that is no finite number",
    "sample": "the problem lacks what it needs",
    "parse": "the judge’s answer holds no score",
    "refused": "the judge declined",
    "budget": "the judge’s budget is spent",
    "infra": "sandbox, worker or server failed",
}
"""Classes of errors in words."""


@dataclass(frozen=True)
class SampleShown:
    sample: LabSample
    rows: list[dict[str, Any]]
    """Each component's score: `component`, `score`."""
    verdict: bool | None
    """Right or wrong, by the heaviest component that decides it."""


@dataclass(frozen=True)
class GroupShown:
    index: int
    samples: tuple[SampleShown, ...]
    reward: RewardConfig

    @property
    def first(self) -> LabSample:
        return self.samples[0].sample

    @property
    def rewards(self) -> list[float]:
        return [shown.sample.reward for shown in self.samples if shown.sample.reward is not None]

    @property
    def mean(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def spread(self) -> float | None:
        """Population standard deviation, as a step divides by."""
        if self.mean is None or nearly_equal(self.rewards):
            return None if self.mean is None else 0.0
        return float((sum((reward - self.mean) ** 2 for reward in self.rewards) / len(self.rewards)) ** 0.5)

    @property
    def flags(self) -> list[bool | None]:
        return [shown.verdict if shown.sample.reward is not None else None for shown in self.samples]

    @property
    def signal(self) -> str:
        """Of several samples: why there is none, or mixed."""
        match group_signal([shown.sample for shown in self.samples], self.reward):
            case "unscored":
                return "not scored" if len(self.samples) > 1 else ""
            case "phantom":
                return "shaping alone"
            case "mixed":
                return "mixed"
        flags = set(self.flags)
        return "all right" if flags == {True} else "all wrong" if flags == {False} else "all equal"


@dataclass(frozen=True)
class Results:
    lab_result: LabResult
    spec: dict[str, Any]
    """The reward, as the job has it."""

    @property
    def spec_components(self) -> list[dict[str, Any]]:
        return list(self.spec["components"])

    @cached_property
    def groups(self) -> list[GroupShown]:
        components = self.spec_components
        heaviest = sorted(components, key=lambda component: -abs(float(component.get("weight", 1.0))))
        members: dict[int, list[SampleShown]] = {}
        for sample in self.lab_result.samples:
            rows = [
                {"component": part, "score": sample.components[part["name"]]}
                for part in components
                if part["name"] in sample.components
            ]
            verdicts = [sample.components[row["name"]].passed for row in heaviest if row["name"] in sample.components]
            verdict = next((passed for passed in verdicts if passed is not None), None)
            members.setdefault(sample.group, []).append(SampleShown(sample, rows, verdict))
        reward = RewardConfig.model_validate(self.spec)
        return [GroupShown(index, tuple(members[index]), reward) for index in sorted(members)]

    def page(self, number: int) -> dict[str, Any]:
        first = (number - 1) * GROUPS_A_PAGE
        last = max(1, -(-len(self.groups) // GROUPS_A_PAGE))
        return {"groups": self.groups[first : first + GROUPS_A_PAGE], "number": number, "last": last}

    @property
    def grouped(self) -> bool:
        """Whether groups have several samples."""
        return self.lab_result.kind == "sample"

    @property
    def histogram(self) -> HistogramDrawn | None:
        return histogram_drawn(self.lab_result.histogram.edges, self.lab_result.histogram.counts)

    @property
    def mixed(self) -> int:
        no_signal = self.lab_result.no_signal
        return no_signal.of - no_signal.groups if no_signal else 0

    @property
    def split(self) -> list[dict[str, Any]]:
        """The groups as one bar of 600, in its pieces."""
        no_signal = self.lab_result.no_signal
        if no_signal is None or not no_signal.of:
            return []
        pieces = (
            ("right", "all right", no_signal.all_right),
            ("mixed", "mixed", self.mixed),
            ("equal", "shaping alone", no_signal.phantom),
            ("equal", "equal for another reason", no_signal.all_equal),
            ("wrong", "all wrong", no_signal.all_wrong),
        )
        parts, x = [], 0.0
        for name, words, count in pieces:
            width = 600 * count / no_signal.of
            if count:
                parts.append({"name": name, "words": words, "count": count, "x": round(x, 2), "width": round(width, 2)})
            x += width
        return parts

    @property
    def unscored(self) -> int:
        """Samples without a reward."""
        return len(self.lab_result.samples) - self.lab_result.rewards.n

    @property
    def error_count(self) -> int:
        return sum(self.lab_result.errors.values())

    @property
    def seconds_a_sample(self) -> float | None:
        """Median of all components together, one after another."""
        timings = self.lab_result.seconds_per_call
        return sum(timing.median for timing in timings.values()) if timings else None

    @property
    def components(self) -> list[dict[str, Any]]:
        """Each component of the reward with what it gave."""
        lab_result, rows = self.lab_result, []
        for component in self.spec_components:
            name = component["name"]
            times = lab_result.seconds_per_call.get(name)
            rows.append(
                {
                    "name": name,
                    "kind": component["kind"],
                    "weight": float(component.get("weight", 1.0)),
                    "mean": lab_result.component_means.get(name),
                    "share": lab_result.component_shares.get(name),
                    "passed": lab_result.passed.get(name),
                    "median": times.median if times else None,
                    "p95": times.p95 if times else None,
                    "errors": lab_result.errors_by_component.get(name, 0),
                }
            )
        return rows

    @property
    def errors(self) -> list[dict[str, Any]]:
        """By class, most frequent first, each with the first that happened."""
        by_class: dict[str, dict[str, Any]] = {}
        for sample in self.lab_result.samples:
            for name, score in sample.components.items():
                kind = score.error_class or "verifier"
                if score.error is not None and kind not in by_class:
                    by_class[kind] = {
                        "name": kind,
                        "words": ERRORS.get(kind, kind),
                        "count": self.lab_result.errors.get(kind, 0),
                        "component": name,
                        "problem": sample.problem_id,
                        "group": sample.group,
                        "score": score,
                    }
        return sorted(by_class.values(), key=lambda error: -error["count"])


def results_of(job: LabJob) -> Results:
    """Of a job that is done; its result was checked when it came."""
    return Results(LabResult.model_validate(job.result), job.spec)
