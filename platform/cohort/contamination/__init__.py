"""Which evaluation items are in the datasets that runs train on: searched at upload, shown, confirmed at launch.

The comparison itself is `grpo_core.data.decontaminate`; it runs in the platform's worker, never in a web request.
"""
