"""What a run's numbers say is wrong with it, and what to do: one table of causes, asked after each step about the last
steps, and at the end about all of them. What it says is recorded, shown on the run's page and printed.

A cause is reported when it begins, at the first step already, and again only after it was away for `WINDOW` steps. The
thresholds are this project's own, not the literature's; docs/diagnosis.md lists them. Loads no torch.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from grpo_core.config.run import RunConfig
from grpo_core.files.checkpoint import step_folder
from grpo_core.records.monitors import MAX_ALL_EQUAL, MAX_TRUNCATED
from grpo_core.records.types import Event, Group
from grpo_core.rewards.base import MISSING
from grpo_core.rewards.signal import OVERLONG
from grpo_core.stats.paired import EQUAL_TOLERANCE
from grpo_core.trainer.metrics import Counts
from grpo_core.trainer.ruin import Point, ruined

WINDOW = 10
"""Steps that a cause is looked for in; fewer while there are fewer."""
MAX_UNSCORED = 0.005
"""Share of completions that may fail to be scored."""
MAX_WITHOUT_ANSWER = 0.5
"""Share of completions in which the verifier may find no answer."""
MAX_PHANTOM = 0.2
"""Share of groups in which shaping alone may vary."""
MAX_DIFFERENCE = 0.05
"""Mean distance of sampler and trainer, in nats a token, that rounding may make."""
EXAMPLES = 3


@dataclass(frozen=True)
class Evidence:
    """Numbers of some steps together."""

    sums: Mapping[str, int]
    """As in `metrics.Counts.sums`."""
    config: RunConfig
    ends: str = ""
    """The end tokens."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the newest step; empty where the whole run is asked about."""
    error: str = ""
    """One of the newest step's errors."""

    def share(self, name: str, of: str) -> float:
        return self.sums.get(name, 0) / self.sums[of] if self.sums.get(of) else 0.0

    def part(self, name: str, of: str) -> str:
        """Such as "12 of 64"."""
        return f"{self.sums.get(name, 0):,} of {self.sums.get(of, 0):,}"

    @property
    def success(self) -> str:
        return self.config.reward.success_component


@dataclass(frozen=True)
class Cause:
    code: str
    says: Callable[[Evidence], str]
    """What is the matter, with its numbers; empty where it is not."""
    advice: Callable[[RunConfig], str]
    """What to do."""


@dataclass(frozen=True)
class Finding:
    """A cause that holds."""

    code: str
    text: str
    advice: str
    kept: int | None = None
    """Step of the checkpoint that is kept for it."""

    def __str__(self) -> str:
        return f"{self.text} {self.advice}"


def _unscored(e: Evidence) -> str:
    if e.share("reward_errors", "samples") <= MAX_UNSCORED:
        return ""
    kinds = [
        (name.removeprefix("reward_errors_"), count) for name, count in sorted(e.sums.items()) if "errors_" in name
    ]
    classes = ", ".join(f"{kind} {count:,}" for kind, count in kinds)
    left_out = e.sums.get("masked_reward_error", 0)
    rest = f"; {left_out:,} of them were left out" if left_out else "; they were paid 0"
    first = f" The first error: {e.error}" if e.error else ""
    return f"{e.part('reward_errors', 'samples')} completions could not be scored ({classes}){rest}.{first}"


def _machine(e: Evidence) -> str:
    if e.share("reward_errors_infra", "samples") <= MAX_UNSCORED:
        return ""
    return (
        f"A sandbox or a server failed for {e.part('reward_errors_infra', 'samples')} completions, which were left out."
    )


def _cut_off(e: Evidence) -> str:
    if e.share("truncated", "samples") <= MAX_TRUNCATED:
        return ""
    limit = e.config.sampling.max_completion_tokens
    return f"{e.part('truncated', 'samples')} completions were cut off at {limit} tokens."


def _never_ends(e: Evidence) -> str:
    if not e.sums.get("samples") or e.sums.get("truncated", 0) < e.sums["samples"]:
        return ""
    ends = f" ({e.ends})" if e.ends else ""
    return f"An end token{ends} was never sampled in {e.sums['samples']:,} completions."


def _no_answer(e: Evidence) -> str:
    if e.share("no_answer", "samples") <= MAX_WITHOUT_ANSWER:
        return ""
    return f"The verifier {e.success} saw no answer in {e.part('no_answer', 'samples')} completions."


def _all_right(e: Evidence) -> str:
    if e.share("groups_all_right", "groups") < MAX_ALL_EQUAL:
        return ""
    return f"All completions are right in {e.part('groups_all_right', 'groups')} groups."


def _all_wrong(e: Evidence) -> str:
    if e.share("groups_all_wrong", "groups") < MAX_ALL_EQUAL:
        return ""
    return f"All completions are wrong in {e.part('groups_all_wrong', 'groups')} groups."


def _all_equal(e: Evidence) -> str:
    explained = e.share("groups_all_right", "groups") + e.share("groups_all_wrong", "groups")
    if e.share("groups_all_equal", "groups") < MAX_ALL_EQUAL or explained >= MAX_ALL_EQUAL:
        return ""
    return (
        f"Every reward is equal within {e.part('groups_all_equal', 'groups')} groups: none is further "
        f"from another than {EQUAL_TOLERANCE:g} of its size."
    )


def _shaping(e: Evidence) -> str:
    if e.share("groups_phantom", "groups") < MAX_PHANTOM:
        return ""
    weights = {component.name: component.weight for component in e.config.reward.components}
    others = [name for name, weight in weights.items() if weight and name != e.success]
    others += [OVERLONG] if e.config.algorithm.overlong.buffer_tokens is not None else []
    did = "they were not learned from" if e.config.algorithm.gates_by_success else "they were learned from all the same"
    return (
        f"In {e.part('groups_phantom', 'groups')} groups rewards differ by {', '.join(others)} alone while {e.success} "
        f"does not; {did}."
    )


def _differs(e: Evidence) -> str:
    far = e.metrics.get("sampling/logp_difference/mean", 0.0)
    if far <= MAX_DIFFERENCE or e.metrics.get("sampling/staleness", 0.0) > 0:
        return ""
    return (
        f"Sampler and trainer differ by {far:.3g} nats a token on average, "
        f"{e.metrics['sampling/logp_difference/max']:.3g} at most."
    )


def _phantom_advice(config: RunConfig) -> str:
    gate = "" if config.algorithm.gates_by_success else "set algorithm.signal_gate: success, and "
    return f"Shaping has nothing to shape yet: {gate}use easier problems, or a cold start that teaches the task first."


def _differs_advice(config: RunConfig) -> str:
    """The settings that make a difference, where there are any."""
    sampling = config.sampling
    cutting = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0 or sampling.repetition_penalty != 1
    causes = {
        "Take top_p 1, top_k 0, min_p 0 and repetition_penalty 1.": cutting,
        "bfloat16 rounds so far: take model.dtype float32.": config.model.dtype == "bfloat16",
        "Give vLLM the trainer's dtype.": config.engine.rollout == "vllm",
    }
    held = [text for text, holds in causes.items() if holds] or ["See that the sampler has the newest weights."]
    return " ".join([*held, "algorithm.correction weighs what is left (docs/losses/off-policy.md)."])


CAUSES = (
    Cause("part_unscored", _unscored, lambda c: "Mend the verifier, or the problems that it cannot read."),
    Cause(
        "machine_failed",
        _machine,
        lambda c: "Look at the worker: its sandbox's self-test, its memory, the judge's address (docs/rewards.md).",
    ),
    Cause(
        "cut_off",
        _cut_off,
        lambda c: "Raise sampling.max_completion_tokens, or ask for shorter answers in the prompt or the reward.",
    ),
    Cause(
        "end_never_sampled",
        _never_ends,
        lambda c: (
            "If completions go on after a whole answer, the model ends its turns with another token (grpo doctor), or "
            "has never learned to end them: give sampling.stop, or a cold start."
        ),
    ),
    Cause(
        "no_answer",
        _no_answer,
        lambda c: "Say in the prompt how the answer is to be written, or set the component's extract to how it is.",
    ),
    Cause(
        "all_right",
        _all_right,
        lambda c: "There is nothing left to learn from these problems: use harder ones, or fewer steps.",
    ),
    Cause(
        "all_wrong",
        _all_wrong,
        lambda c: (
            "Use easier problems, more completions of each (sampling.group_size), a base model that sometimes succeeds "
            "or a cold start; or see whether the reference answers are right."
        ),
    ),
    Cause(
        "all_equal",
        _all_equal,
        lambda c: "Use a reward with more steps between 0 and full, or a higher sampling.temperature.",
    ),
    Cause("shaping_alone", _shaping, _phantom_advice),
    Cause(
        "sampler_differs",
        _differs,
        _differs_advice,
    ),
)
"""In the order in which they are reported: a cause comes before what it explains."""


def findings(evidence: Evidence) -> list[Finding]:
    """Every cause that holds, in order."""
    causes = ((cause, cause.says(evidence)) for cause in CAUSES)
    return [Finding(cause.code, text, cause.advice(evidence.config)) for cause, text in causes if text]


@dataclass(eq=False)
class Diagnosis:
    """Follows one run from step to step."""

    config: RunConfig
    ends: str
    """The end tokens, for people."""
    counts: Counts
    """The trainer's own, which hold the step before they are asked about."""
    _: KW_ONLY
    keep: Callable[[int], int | None]
    """Keep the newest checkpoint of at most this step; returns its step, None where there is none."""

    def __post_init__(self) -> None:
        self._sums: deque[Counter[str]] = deque(maxlen=WINDOW)
        self._points: deque[Point] = deque(maxlen=WINDOW)

    def step(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> Iterator[tuple[Event, str]]:
        """What begins with this step: the event, and examples for the terminal."""
        if not groups:
            return
        self._sums.append(self.counts.newest)
        window: Counter[str] = Counter()
        for own in self._sums:
            window.update(own)
        errors = (c.error for group in groups for sample in group.samples for c in sample.components.values())
        error = next((error for error in errors if error is not None), "")
        held = findings(Evidence(window, self.config, self.ends, metrics, error))
        newest = Point.of(step, groups, self.counts.newest, metrics)
        if (ruin := ruined(newest, self._points, self.config)) is not None:
            good = self.keep(ruin.step - 1)
            held.append(Finding("ruined", ruin.text, ruin.advice(good), good))
            self._points.clear()  # what comes is compared with what is left
        self._points.append(newest)
        for finding in held:
            last, self.counts.held[finding.code] = self.counts.held.get(finding.code), step
            if last is None or step - last > WINDOW:
                data = {"cause": finding.code, "step": step, "text": finding.text, "advice": finding.advice}
                data |= {"kept": finding.kept} if finding.kept is not None else {}
                event = Event(type="diagnosis", message=f"step {step}: {finding}", data=data)
                yield event, _seen(groups, self.config) if finding.code == "no_answer" else ""

    def last_words(self, good: int | None = None) -> str:
        """The outcome of a finished run: how many groups carried a signal, and each cause that held over all of it.
        `good`: step of the checkpoint from before a ruinous update."""
        counts, sums = self.counts, self.counts.sums
        carried = self.config.algorithm.carried(sums)
        text = f"Finished {counts.steps} steps; {carried:,} of {sums['groups']:,} groups carried a signal."
        if carried == 0 and counts.informative == 0:
            text = (
                f"No group carried a signal in {counts.steps} steps ({sums['groups']:,} groups): the policy was not "
                "changed by rewards."
            )
        more = [str(finding) for finding in findings(Evidence(sums, self.config, self.ends))]
        if "ruined" in counts.held:
            kept = f"; {step_folder(good)} is the last checkpoint from before it" if good is not None else ""
            more.append(f"The policy was ruined, as was reported at step {counts.held['ruined']}{kept}.")
        return " ".join([text, *more])


def _seen(groups: Sequence[Group], config: RunConfig) -> str:
    """What the verifier saw: the ends of three completions, where an answer is looked for. Printed only; the record has
    completions with their groups, where they can be redacted."""
    success = config.reward.success_of
    texts = [
        sample.completion[-120:]
        for group in groups
        for sample in group.samples
        if sample.components[success(sample.components)].detail in MISSING.values()
    ]
    return "\n".join(f"  it saw: …{text!r}" for text in texts[:EXAMPLES])
