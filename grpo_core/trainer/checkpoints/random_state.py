"""The global random generators of this process, as JSON and back. Never a pickle."""

import base64
import random

import numpy as np
import torch
from torch import Tensor

from grpo_core.trainer.checkpoints.state import RandomState


def take(device: torch.device) -> RandomState:
    """The generators of python, numpy, torch and, on a GPU, of the device, as they stand."""
    _, words, gauss = random.getstate()
    known = np.random.get_state(legacy=False)
    assert isinstance(known, dict)
    assert known["bit_generator"] == "MT19937"
    return RandomState(
        python=list(words),
        python_gauss=gauss,
        numpy=[*known["state"]["key"].tolist(), int(known["state"]["pos"])],
        numpy_gauss=float(known["gauss"]) if known["has_gauss"] else None,
        torch=_text(torch.get_rng_state()),
        device=_text(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
    )


def give(state: RandomState, device: torch.device) -> None:
    """Set the generators. That of a GPU is left alone where the state was taken on a CPU."""
    random.setstate((3, tuple(state.python), state.python_gauss))
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": np.array(state.numpy[:-1], dtype=np.uint32), "pos": state.numpy[-1]},
            "has_gauss": int(state.numpy_gauss is not None),
            "gauss": state.numpy_gauss or 0.0,
        }
    )
    torch.set_rng_state(_bytes(state.torch))
    if device.type == "cuda" and state.device is not None:
        torch.cuda.set_rng_state(_bytes(state.device), device)


def _text(state: Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
