"""One run over several processes and machines: torchrun, ranks, devices, and how they end together."""
