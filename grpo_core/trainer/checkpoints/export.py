"""Makes a plain model folder of a checkpoint that a run can resume from: for evaluating or serving a step on the way.

A state holds trained weights only, so the base model gives the rest: its shape, its tokenizer, and with adapters its
weights. It must be the very model that the run started from.
"""

from dataclasses import replace
from pathlib import Path

import torch

from grpo_core.config.kinds import config_from_whole
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import ModelConfig
from grpo_core.errors import CheckpointError, ModelError
from grpo_core.files.checkpoint import verify_checkpoint
from grpo_core.model.classifier import load_classifier
from grpo_core.model.load import find_model
from grpo_core.model.lora import load_policy
from grpo_core.model.source import model_inputs
from grpo_core.records.types import CheckpointManifest
from grpo_core.trainer.checkpoints.state import read_state
from grpo_core.trainer.checkpoints.write import load_parts, save_weights
from grpo_core.training.trainable import fit


@torch.no_grad()
def export(checkpoint: Path, out: Path, *, model: Path | None = None, merged: bool = True) -> CheckpointManifest:
    """Write `out`: with adapters the whole model, or where not `merged` the adapters alone. `model`: folder of the base
    model where it is not where the run read it. Raises CheckpointError, ModelError, DiskFullError."""
    if out.exists():
        raise CheckpointError(f"{out} is there already; give --out a folder that is to be made")
    if verify_checkpoint(checkpoint).final:
        raise CheckpointError(f"{checkpoint} is a model folder already: nothing is to be made of it")
    state = read_state(checkpoint)
    config = config_from_whole(state.config, source=f"the config in {checkpoint}")
    if model is not None:
        source = replace(find_model(ModelConfig(path=str(model.resolve())), base=model), given=config.model.path)
    else:
        try:
            source = find_model(config.model, base=Path(state.base))
        except ModelError as error:
            raise ModelError(f"{error} Or name the base model's folder with --model") from None
    for what, digest in model_inputs(source).items():
        if state.inputs[what] != digest:
            raise ModelError(
                f"{source.folder}: {what} are not those that the run started from; name the right folder with --model"
            )
    if not merged and not config.model.lora.rank:
        raise CheckpointError(f"{checkpoint} is of a run that trained all weights; leave --adapter out")
    if isinstance(config, RewardModelConfig):
        policy = load_classifier(source, config, device=torch.device("cpu")).loaded
    else:
        # Where the run held it in 4 bits too, the base model is merged as it is.
        whole = config.model.model_copy(update={"quantization": "none"})
        policy = load_policy(source, whole, device=torch.device("cpu"), seed=config.seed)
        policy.encoder(config.data)  # the chat template may end a turn by a token of its own
    exact = load_parts(checkpoint)["policy"]
    trained = {name: weight for name, weight in policy.model.named_parameters() if weight.requires_grad}
    fit(exact, {name: weight.shape for name, weight in trained.items()})
    for name, weight in trained.items():
        weight.copy_(exact[name])
    return save_weights(out, policy, step=state.step, run_folder=out.parent, merged=merged)
