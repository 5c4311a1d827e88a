"""The reward kind `judge`: a language model's grade, requested from an OpenAI-compatible server."""
