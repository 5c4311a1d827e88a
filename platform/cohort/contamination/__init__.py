"""Which evaluation items stand in the datasets that runs train on: looked for at upload, shown, asked about at launch.

The comparison itself is `grpo_core.data.decontaminate`; it runs in the platform's worker, never in a web request.
"""
