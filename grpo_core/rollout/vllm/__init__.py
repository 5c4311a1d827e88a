"""vLLM as the sampler, in the trainer's process (colocated) or in a separate one (server). Every push of weights is
verified before anything is sampled from them.

`engine`, `extension` and `server` run where vLLM is installed; no other file here imports it. The server's process may
have another interpreter than the trainer, so what both sides use (`wire`, `shared`, `settings`) needs no more than
torch, pydantic, pyyaml and rfc8785.
"""
