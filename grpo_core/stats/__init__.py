"""Statistics of evaluations: intervals and paired comparisons on the same problems. Plain Python, no torch, no numpy.

Used alike by the trainer, the web pages and the offline check of a card, so that all three give the same numbers.
Scores lie in 0 to 1; differences are after − before. Formulas and sources: docs/statistics.md.
"""

from grpo_core.stats.bootstrap import Bootstrap, bootstrap
from grpo_core.stats.clustered import Clustered, clustered, clustered_error, effective_n
from grpo_core.stats.equal import EQUAL_TOLERANCE, nearly_equal
from grpo_core.stats.families import benjamini_hochberg, holm
from grpo_core.stats.inferiority import Evidence, HigherIs, NonInferiority, non_inferiority, verdict
from grpo_core.stats.paired import Paired, detectable, mcnemar_exact, paired
from grpo_core.stats.quantiles import Z95, Z95_ONE_SIDED, student_p, student_t
from grpo_core.stats.score_test import tango_lower, tango_z
from grpo_core.stats.shares import Interval, none_of, wilson

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
