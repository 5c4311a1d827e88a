"""Blocked runs: a run whose reward is known to reward wrong answers, or was never probed, is launched only with a
reason, which is stored.

Reads what the newest probe of a reward's version found, and stores at each launch what was known then. It starts
no probe and judges nothing itself: the verdict is the probe's.
"""

from dataclasses import dataclass
from typing import Any

from django.db.models import Case, When

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.catalog.models import PromptDataset, VerifierVersion
from cohort.evidence.plain_text import named
from cohort.lab.models import LaunchProbe, VerifierProbe
from cohort.runs.models import Run
from cohort.runs.transitions import run_logged
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.probe.report import ProbeReport

MIN_REASON_CHARS = 10
MAX_REASON_CHARS = 5_000
FIELD = "probe_override"


@dataclass(frozen=True)
class Gate:
    """What is known of a version before it rewards a run."""

    probe: VerifierProbe | None
    state: str
    """clean, pays_wrong, rejects_right, undecided or unprobed."""
    pays_wrong: tuple[str, ...]
    """Names of the classes of wrong answers that it rewards."""

    @property
    def held(self) -> bool:
        """Whether a launch needs a reason."""
        return self.state in ("pays_wrong", "unprobed")

    @property
    def titles(self) -> list[str]:
        """The same classes in words."""
        return titles_of(self.probe, self.pays_wrong) if self.probe else list(self.pays_wrong)

    @property
    def text(self) -> str:
        """One line for the run form."""
        match self.state:
            case "unprobed":
                return "blocked: the reward was never probed, and nobody knows which wrong answers it rewards"
            case "clean":
                return "the probe found no class of wrong answers that the reward scores as correct"
            case "rejects_right":
                return "the probe found that the reward refuses the reference answers themselves"
            case "undecided":
                return "the last probe of the reward decided nothing: errors kept it from scoring"
            case _:
                return f"blocked: the reward scores {named(self.titles, 3)} {self.scored_as}"

    @property
    def scored_as(self) -> str:
        """How it scores them: a learned reward has no number that means correct."""
        learned = self.probe is not None and self.probe.report.get("learned") is not None
        return "as high as right answers" if learned else "as correct"


def gate(version: VerifierVersion, dataset: PromptDataset | None) -> Gate:
    """By the newest probe of the version on this dataset; without one, by the newest of the version."""
    probes = VerifierProbe.objects.filter(version=version).select_related("version__verifier", "by", "dataset")
    mine = [] if dataset is None else [Case(When(dataset=dataset, then=0), default=1)]
    probe = probes.order_by(*mine, "-id").first()
    if probe is None:
        return Gate(None, "unprobed", ())
    return Gate(probe, probe.verdict, tuple(probe.pays_wrong))


def titles_of(probe: VerifierProbe, names: tuple[str, ...]) -> list[str]:
    """The classes in the report's own words."""
    by_name = {cls.name: cls.title for cls in ProbeReport.from_json(probe.report).classes}
    return [by_name.get(name, name) for name in names]


def override_reason(text: str) -> str:
    """Why a blocked run is launched, as it is stored. Raises ConfigError at `probe_override` for one that is too long;
    one below `MIN_REASON_CHARS` is for the caller to refuse, where it needs one."""
    reason = storable(text.strip())
    if len(reason) > MAX_REASON_CHARS:
        long = f"the reason has {len(reason):,} characters; {MAX_REASON_CHARS:,} at most are taken. Shorten it"
        raise ConfigError(long, (FieldProblem(FIELD, long),))
    return reason


def record_launch_probe(*, run: Run, actor: User, override: str) -> LaunchProbe:
    """Store what is known of the run's reward, in the transaction of its launch.

    Raises ConfigError at `probe_override` when the run is blocked and `override` is no reason.
    """
    known = gate(run.verifier_version, run.dataset)
    reason = override_reason(override)
    if known.held and len(reason) < MIN_REASON_CHARS:
        short = f" {len(reason)} of the {MIN_REASON_CHARS} characters that a reason needs are there." if reason else ""
        if known.state == "unprobed":
            why = "blocked: the reward was never probed. Probe it, or give a reason to launch with an override."
        else:
            scored = f"{named(known.titles, 3)} {known.scored_as}"
            why = f"blocked: the verifier scores {scored}. Mend it, or say why it is used."
        raise ConfigError("the run is blocked by the probe of its reward", (FieldProblem(FIELD, why + short),))
    launch = LaunchProbe.objects.create(
        run=run,
        probe=known.probe,
        state=known.state,
        pays_wrong=list(known.pays_wrong),
        overridden=known.held,
        reason=reason if known.held else "",
        by=actor,
    )
    if known.held:
        run_logged(
            run=run,
            actor=audit.who(actor),
            kind="hold_back_overridden",
            reason=reason,
            data={"config_digest": run.config_digest, **figures(known)},
        )
    return launch


def figures(known: Gate) -> dict[str, Any]:
    """For the audit log."""
    probe = known.probe
    return {
        "state": known.state,
        "pays_wrong": list(known.pays_wrong),
        "probe": None if probe is None else {"id": probe.pk, "digest": probe.digest},
    }


def launch_of(run: Run) -> LaunchProbe | None:
    """What was known at the run's last launch; None for a draft."""
    return run.launch_probes.select_related("probe", "by", "probe__dataset", "probe__version__verifier").first()
