"""Suites: versioned items, and what they are judged by. Loads no torch."""

from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.suites.formats import FORMATS, Format, convert
from grpo_core.evaluate.suites.load import Suite, load_suite, load_suites, suite_at
from grpo_core.evaluate.suites.reader import items_digest, items_jsonl, load_items, scan_items
from grpo_core.evaluate.suites.starters import Starter, starters

__all__ = [
    "FORMATS",
    "Format",
    "Starter",
    "Suite",
    "SuiteItem",
    "convert",
    "items_digest",
    "items_jsonl",
    "load_items",
    "load_suite",
    "load_suites",
    "scan_items",
    "starters",
    "suite_at",
]
