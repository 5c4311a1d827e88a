"""What was registered in the audit log before a run's first step: its parts, and which of two registrations plan the
same. Knows no Django."""

from collections.abc import Mapping
from typing import Any

SCHEMA = "cohort-preregistration/1"
REGISTERED, FIRST_STEP = "run_preregistered", "first_step_recorded"
"""Kinds of the log's entries."""
FILE = "preregistration.json"
"""Of a card: the entries with their proofs, by name, each {entry, proof}."""
IN_FORCE, PLANNED, STEPPED = "in_force", "planned", "first_step"
"""The registration of the record's config; the first that planned the same; the arrival of the first step."""
_PLAN = ("verifier", "heldout_verifier", "suites", "primary", "hypotheses")


def plan(content: Mapping[str, Any]) -> dict[str, Any]:
    """All but the config's digest, which also changes when a run is given more steps."""
    return {name: content[name] for name in _PLAN}


def margins(content: Mapping[str, Any]) -> dict[str, float]:
    """Suite → registered margin."""
    return {str(suite["suite"]): float(suite["margin"]) for suite in content["suites"]}
