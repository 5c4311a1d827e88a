"""The GRPO trainer. Complete without the platform: it reads a config, writes a run directory.

Must not know Django, Celery or HTTP. Importing this package, or any of its torch-free modules (config, presets,
records, run_dir, stats, errors, data, rewards), must not load torch; tests/test_layering.py holds that.
"""

__version__ = "0.1.0"
