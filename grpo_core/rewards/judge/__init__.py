"""The reward kind `judge`: a language model's grade, asked of an OpenAI-compatible server."""
