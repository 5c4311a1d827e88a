"""Statistics of evaluations: intervals and paired comparisons on the same problems. Plain Python, no torch, no numpy.

Used alike by the trainer, the web pages and the offline check of a card, so that all three give the same numbers.
Scores lie in 0 to 1; differences are after − before. Formulas and sources: docs/statistics.md.
"""

from grpo_core.stats.bootstrap import Bootstrap, bootstrap
from grpo_core.stats.clustered import Clustered, clustered, clustered_error, effective_n
from grpo_core.stats.inferiority import Evidence, HigherIs, NonInferiority, non_inferiority, verdict
from grpo_core.stats.paired import (
    EQUAL_TOLERANCE,
    Paired,
    benjamini_hochberg,
    detectable,
    holm,
    mcnemar_exact,
    nearly_equal,
    paired,
    tango_lower,
    tango_z,
)
from grpo_core.stats.quantiles import Z95, Z95_ONE_SIDED, Interval, none_of, student_p, student_t, wilson

__all__ = [
    "EQUAL_TOLERANCE",
    "Z95",
    "Z95_ONE_SIDED",
    "Bootstrap",
    "Clustered",
    "Evidence",
    "HigherIs",
    "Interval",
    "NonInferiority",
    "Paired",
    "benjamini_hochberg",
    "bootstrap",
    "clustered",
    "clustered_error",
    "detectable",
    "effective_n",
    "holm",
    "mcnemar_exact",
    "nearly_equal",
    "non_inferiority",
    "none_of",
    "paired",
    "student_p",
    "student_t",
    "tango_lower",
    "tango_z",
    "verdict",
    "wilson",
]
