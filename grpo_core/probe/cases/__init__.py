"""The cases of a probe: right and wrong answers to a verifier's own problems."""
