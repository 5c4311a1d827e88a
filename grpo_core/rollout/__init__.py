"""Sampling: Cohort's own sampler, and vLLM."""
