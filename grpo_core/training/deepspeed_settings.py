"""What DeepSpeed is told, of a run's config. Loads neither torch nor DeepSpeed."""

from typing import Any

from grpo_core.config.run import RunConfig

INSTALL = (
    "Install it beside torch, in an environment without the platform: pip install --no-build-isolation "
    "'cohort-grpo[deepspeed]' (in a checkout: make deepspeed-env); or set engine.training: single"
)


def settings(config: RunConfig) -> dict[str, Any]:
    """DeepSpeed's configuration. Learning rate, losses and the number of passes stay with us: a batch of one and one
    pass are only said because it asks."""
    chosen = config.engine.deepspeed
    zero: dict[str, Any] = {"stage": chosen.zero_stage}
    if chosen.offload != "none":
        zero["offload_optimizer"] = _HOST
    if chosen.offload == "all":
        zero["offload_param"] = _HOST
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.max_grad_norm,
        "zero_optimization": zero,
        # Its own AdamW for offloaded moments has to be compiled, and its results are not quite torch's.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.model.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": None,
    }


_HOST = {"device": "cpu", "pin_memory": True}
