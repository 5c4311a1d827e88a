"""Push the newest checkpoint to targets outside: a git repository, a witness. They are independent: a failure
is reported and stops none of the others.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from django.db.models.functions import Now

from cohort.audit.git_push import GitFault, git_push
from cohort.audit.models import LogCheckpoint, LogCosignature, LogPush
from cohort.audit.services import LogFault, consistency
from cohort.audit.witness import WitnessFault, cosigned
from cohort.base.environment import environment
from cohort.evidence.cosignature import WitnessKey
from cohort.evidence.keys import KeyFault

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PushOutcome:
    """The outcome for one target."""

    target: str
    good: bool
    words: str


def targets() -> dict[str, Callable[[LogCheckpoint], str]]:
    """By name, the function that pushes a checkpoint and returns how it went."""
    given = {"git": (environment().log_git, _git), "witness": (environment().log_witness, _witness)}
    return {name: act for name, (address, act) in given.items() if address}


def push(*, only_new: bool = False) -> list[PushOutcome]:
    """Push the newest checkpoint to every configured target; with `only_new` to those that do not have it."""
    newest = LogCheckpoint.objects.order_by("-size").first()
    if newest is None:
        return []
    outcomes = []
    for target, act in targets().items():
        if only_new and LogPush.objects.filter(target=target, size=newest.size, failed_at=None).exists():
            continue
        outcomes.append(_push_to(target, act, newest))
    return outcomes


def _push_to(target: str, act: Callable[[LogCheckpoint], str], newest: LogCheckpoint) -> PushOutcome:
    try:
        words = act(newest)
    except (GitFault, WitnessFault, KeyFault, LogFault) as error:
        words = f"{target}: the checkpoint of {newest.size:,} entries was not handed on: {error}"
        _log.warning("%s", words)
        LogPush.objects.update_or_create(target=target, defaults={"failed_at": Now(), "error": str(error)})
        return PushOutcome(target, False, words)
    defaults = {"size": newest.size, "pushed_at": Now(), "failed_at": None, "error": ""}
    LogPush.objects.update_or_create(target=target, defaults=defaults)
    return PushOutcome(target, True, f"{target}: {words}")


def _git(newest: LogCheckpoint) -> str:
    return git_push(environment().log_git, newest)


def _witness(newest: LogCheckpoint) -> str:
    """Raises WitnessFault, and KeyFault without the witness's key: its signature could not be checked."""
    settings = environment()
    if not settings.log_witness_key:
        raise KeyFault("COHORT_LOG_WITNESS_KEY must hold the witness's public key, or its word could not be checked")
    key = WitnessKey.parse(settings.log_witness_key)
    vkey = settings.log_witness_key
    held = LogCosignature.objects.filter(checkpoint=newest, witness=vkey).first()
    if held is not None:
        return f"the checkpoint of {newest.size:,} entries has been cosigned by {key.name}"
    last = LogCosignature.objects.filter(witness=vkey).order_by("-checkpoint__size").first()
    line, at = cosigned(
        settings.log_witness,
        key,
        newest.note,
        old=0 if last is None else last.checkpoint.size,
        proof=lambda size: consistency(to=newest.size, sizes=[size])[size],
    )
    LogCosignature.objects.create(checkpoint=newest, witness=vkey, line=line, at=at)
    return f"{key.name} cosigned the checkpoint of {newest.size:,} entries\n{line}"
