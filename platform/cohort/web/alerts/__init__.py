"""The desk of alerts, and pages of rules and channels."""
