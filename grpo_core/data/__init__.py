"""Problems: where they come from, how they are split, and what they hash to. Loads no torch."""

from grpo_core.data.fingerprint import file_sha256, problems_digest
from grpo_core.data.loaders import load_problems, scan_problems
from grpo_core.data.problem import Problem, holdout

__all__ = ["Problem", "file_sha256", "holdout", "load_problems", "problems_digest", "scan_problems"]
