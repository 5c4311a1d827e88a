"""Floating-point operations of a run: by the model's architecture, by hardware time, and compared with what the
Commission's guidelines take as an indication of a significant modification. Loads no torch.

Everybody who states a number of operations takes it from here: `grpo estimate`, the launch form, a run's page and its
record.
"""
