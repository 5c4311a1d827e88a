"""What is fixed before a run's first step, in the audit log before it: suites, margins, primary outcome, verifier,
config and hypotheses. And the entry of the first step's arrival, so that the log's order shows which came first.

An entry names nobody: it is shown in every card. Who launched the run is in the entry next to it.
"""

from typing import Any

from django.core.exceptions import ValidationError

from cohort.audit.models import AuditEntry
from cohort.base.storable import storable
from cohort.catalog.models import PromptDataset, VerifierVersion
from cohort.evidence.preregistration import FIRST_STEP, REGISTERED, SCHEMA
from cohort.runs.models import DatasetRole, Run
from cohort.runs.transitions import run_logged
from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.reward_model import RewardModelConfig

MOST_CHARS = 5_000
"""Of the hypotheses together."""


def hypotheses_checked(text: str) -> str:
    """With one kind of line end. Raises ValidationError for a text that is too long."""
    text = storable(text.replace("\r\n", "\n").strip())
    if len(text) > MOST_CHARS:
        raise ValidationError(
            f"The hypotheses have {len(text):,} characters; at most {MOST_CHARS:,} are registered. Shorten them."
        )
    return text


def registration(run: Run) -> dict[str, Any]:
    """The content of the entry, canonical JSON; every value is fixed at the launch."""
    config = run.parsed_config
    heldout = _held_out(run, config)
    evaluated = config.eval.before or config.eval.after
    suites: list[dict[str, Any]] = []
    if evaluated and heldout is not None:
        held = {"suite": HELDOUT, "version": None, "sha256": heldout.sha256, "margin": config.eval.margin}
        suites.append(held | {"category": "performance", "higher_is": "better"})
    if evaluated:
        suites += [
            {
                "suite": suite.name,
                "version": suite.version,
                "sha256": suite.sha256,
                "margin": config.eval.margin if suite.margin is None else suite.margin,
                "category": suite.category,
                "higher_is": suite.higher_is,
            }
            for suite in config.eval.suites
        ]
    return {
        "schema": SCHEMA,
        "config_sha256": run.config_digest,
        "verifier": _verifier(run.verifier_version),
        "heldout_verifier": _verifier(run.eval_verifier_version),
        "suites": suites,
        "primary": suites[0]["suite"] if suites else None,
        "hypotheses": [line.strip() for line in run.hypotheses.splitlines() if line.strip()],
    }


def _held_out(run: Run, config: AnyConfig) -> PromptDataset | None:
    """Where the held-out problems, or of a reward model the held-out pairs, are from; None where there are none."""
    if isinstance(config, RewardModelConfig):
        own = run.run_datasets.filter(role=DatasetRole.HELDOUT).select_related("dataset").first()
        return own.dataset if own is not None else run.dataset if config.data.holdout else None
    return run.eval_dataset or (run.dataset if config.eval.holdout else None)


def _verifier(version: VerifierVersion | None) -> dict[str, Any] | None:
    if version is None:
        return None
    return {"name": version.verifier.name, "version": version.number, "sha256": version.digest}


def record_preregistration(*, run: Run) -> None:
    """Register what the run is now; called whenever a person puts it into the queue with a config that is new."""
    run_logged(run=run, actor="platform", kind=REGISTERED, data=registration(run))


def record_first_step(*, run_id: int) -> None:
    """The first step of the run has arrived."""
    run = Run.objects.select_related("project").get(pk=run_id)
    run_logged(run=run, actor="trainer", kind=FIRST_STEP)


def registration_entries(run: Run) -> tuple[list[AuditEntry], AuditEntry | None]:
    """Every registration of the run, the oldest first, and the arrival of its first step; None before it."""
    entries = AuditEntry.objects.filter(subject=f"run:{run.pk}", kind__in=[REGISTERED, FIRST_STEP]).order_by("pk")
    listed = list(entries)
    first = next((entry for entry in listed if entry.kind == FIRST_STEP), None)
    return [entry for entry in listed if entry.kind == REGISTERED], first
