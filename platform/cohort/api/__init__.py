"""The public HTTP API, by personal tokens: /api/v1/, as docs/api.md describes it."""
