"""Governance records, their cards, and what is added after a seal."""
