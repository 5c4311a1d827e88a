"""Signals of the catalog. Receivers run in the transaction that adds the row."""

from django.dispatch import Signal

dataset_added = Signal()
"""Sent with `dataset`, a new PromptDataset."""
suite_version_added = Signal()
"""Sent with `version`, a new EvalSuiteVersion."""
