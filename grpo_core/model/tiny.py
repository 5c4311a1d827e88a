"""Makes a small Llama with a byte-level tokenizer, for the demo and for tests.

Its weights are random: `grpo_core.trainer.cold_start` teaches it something. Must not be mistaken for a model to measure
quality with; it exists so that a real run fits on two CPU cores. (Not a Qwen2: transformers gives every Qwen2 folder
Qwen's own tokenizer, which rewrites text to NFC and adds a token that the model has no row for.)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|end|>"
PAD = "<|pad|>"


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the network. The default has about 0.4 million parameters: enough for two-digit additions, and small
    enough that a run of a hundred steps takes minutes on two cores."""

    hidden: int = 96
    layers: int = 3
    heads: int = 4
    feed_forward: int = 288
    context: int = 4096


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte and no merges, so any text goes in and comes out unchanged; then END and PAD."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([END, PAD])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def make_tiny(*, seed: int, shape: TinyShape | None = None) -> tuple[Any, PreTrainedTokenizerFast]:
    """A Llama with random fp32 weights drawn from `seed`, and its tokenizer. The global random state is left alone."""
    shape = shape or TinyShape()
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.context,
        # transformers' 0.02 is meant for wide networks; a narrow one starts too flat with it and learns half as fast.
        initializer_range=shape.hidden**-0.5,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), tokenizer


def save_tiny(folder: Path, *, seed: int, shape: TinyShape | None = None) -> None:
    """Write such a model to `folder` the way transformers and vLLM load it."""
    model, tokenizer = make_tiny(seed=seed, shape=shape)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
