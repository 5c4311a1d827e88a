"""A run's suites with statistics that were computed before, by whatever web process.

A bootstrap of 1,000 items takes most of a second, and every page of a run's evaluations shows it. The newest
comparisons of each run are kept in one row, under a digest of all that went into them: every item, what the suite and
its margin are, and the code that computes. What is read is therefore what would be computed now, and nothing has to be
invalidated.

Only for pages. A record is sealed from what is computed there and then.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import grpo_core.stats
from cohort.evaluations.selectors import Suite, suites
from cohort.evidence import compare, items
from cohort.evidence.compare import Case, Item, compare_all
from cohort.runs.models import ComparisonCache, Run
from grpo_core.config.run import RunConfig

_values = attrgetter(*(field.name for field in fields(Item)))


def suites_cached(run: Run, config: RunConfig) -> list[Suite]:
    """As `suites`."""
    return suites(run, config, compare=lambda cases: _compared(run, cases))


def _compared(run: Run, cases: Sequence[Case]) -> list[dict[str, Any]]:
    if not cases:
        return []
    key = _key(cases)
    kept = ComparisonCache.objects.filter(run=run, key=key).values_list("comparisons", flat=True).first()
    if kept is None:
        kept = json.dumps(compare_all(cases))
        row = ComparisonCache(run=run, key=key, comparisons=kept)
        ComparisonCache.objects.bulk_create(
            [row], update_conflicts=True, unique_fields=["run"], update_fields=["key", "comparisons"]
        )
    comparisons: list[dict[str, Any]] = json.loads(kept)
    return comparisons


def _key(cases: Sequence[Case]) -> str:
    """SHA-256, as hex."""
    digest = hashlib.sha256(_code().encode())
    for facts, before, after, same_protocol, touched in cases:
        sides = [None if side is None else [*map(_values, side)] for side in (before, after)]
        parts = [asdict(facts), sides, same_protocol, None if touched is None else sorted(touched)]
        digest.update(json.dumps(parts).encode())
    return digest.hexdigest()


@cache
def _code() -> str:
    """SHA-256 of the modules that the statistics come from."""
    package = Path(grpo_core.stats.__file__).parent
    sources = [*sorted(package.glob("*.py")), Path(compare.__file__), Path(items.__file__)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
