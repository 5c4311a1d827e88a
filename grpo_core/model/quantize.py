"""The base model of LoRA adapters in 4 bits (QLoRA, Dettmers et al. 2023, arXiv 2305.14314): NF4 with double
quantisation, by bitsandbytes through transformers. Matrix products are in bfloat16; the output layer, embeddings and
norms keep `model.dtype`.
"""

from importlib.util import find_spec
from typing import Any

import torch

from grpo_core.errors import ModelError

NF4: dict[str, Any] = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": torch.bfloat16,
}
"""Settings of transformers' BitsAndBytesConfig."""


def quantized_loading(device: torch.device) -> dict[str, Any]:
    """What transformers' `from_pretrained` is given so that it quantises the weights as it reads them onto `device`.
    Raises ModelError where there is no GPU, and where bitsandbytes is not installed."""
    if device.type != "cuda":
        raise ModelError(
            f"model.quantization nf4 needs a GPU, and this run trains on {device.type}; set engine.device: cuda on a "
            "machine that has one, or model.quantization: none"
        )
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            "model.quantization nf4 needs bitsandbytes: pip install 'cohort-grpo[quantize]', or set "
            "model.quantization: none"
        )
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(**NF4)  # type: ignore[no-untyped-call]
    return {"quantization_config": settings, "device_map": {"": device}}
