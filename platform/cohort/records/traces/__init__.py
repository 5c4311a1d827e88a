"""Texts of samples: disclosure, redaction, retention."""
