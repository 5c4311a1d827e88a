"""`cohort verify CARD.zip`: is this card exactly as it was issued, and do its numbers follow from its own items?

Works offline, with nothing but Python, `cryptography` and what ships in verify.pyz. A card is a file from anywhere:
sizes are bounded before anything is read, names are never used as paths, what cannot be parsed is a reason to reject,
not an error, and nothing out of a card reaches a terminal or a page unescaped.
"""

from cohort.evidence.verify.check import CannotRead, check_card, verify_card
from cohort.evidence.verify.command import main
from cohort.evidence.verify.report import Check, Report

__all__ = ["CannotRead", "Check", "Report", "check_card", "main", "verify_card"]
