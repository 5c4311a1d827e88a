"""The reward lab's jobs: a reward tried on given answers, on answers of a base model, or probed. `job` and `result`
load no torch, so that the platform can check what it requests and what it receives."""
