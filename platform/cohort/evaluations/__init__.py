"""Evaluation results of runs: reads, comparisons, results imported from other tools."""
