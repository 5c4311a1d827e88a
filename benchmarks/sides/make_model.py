"""The benchmarks' models: random weights and a tokenizer in a folder that both sides load.

    make_model.py FOLDER [KIND [VOCABULARY MAX_TOKENS MEAN]]

A Qwen2 is made so that its completions end by themselves: one dimension of the residual stream is the same at every
position, and the end token's embedding differs from all others in it. With tied embeddings that is a bias on the end
token's logit which is part of the weights, so both sides sample and learn from the same distribution. qwen2-full never
ends. MEAN is the wanted mean length as a share of MAX_TOKENS.
"""

import math
import string
import sys
from pathlib import Path
from typing import Any

import torch
import work
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END, PAD = "<|endoftext|>", "<|pad|>"
CONSTANT = 8.0
"""What stands in the constant dimension: large beside the rest, so that the bias is nearly the same everywhere."""


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Bytes, then END and PAD, then strings of letters, which only completions have."""
    pieces = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pieces |= {END: len(pieces), PAD: len(pieces) + 1}
    merges, last = [], list(string.ascii_letters)
    while len(pieces) < vocabulary:
        longer = []
        for start in last:
            for letter in string.ascii_letters:
                if len(pieces) < vocabulary:
                    pieces[start + letter] = len(pieces)
                    merges.append((start, letter))
                    longer.append(start + letter)
        last = longer
    core = Tokenizer(models.BPE(vocab=pieces, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([END, PAD])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def end_chance(mean: float, most: int) -> float:
    """p for which a length that ends with chance p at each token, `most` at the latest, has this mean:
    (1 − (1 − p)^most) / p = mean."""
    low, high = 1e-9, 1.0
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (1 - (1 - middle) ** most) / middle > mean else (low, middle)
    return high


@torch.no_grad()
def qwen2(kind: str, vocabulary: int, most: int, mean: float) -> tuple[Any, Any]:
    made = tokenizer(vocabulary)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, tie_word_embeddings=True, max_position_embeddings=8192,
        eos_token_id=made.eos_token_id, pad_token_id=made.pad_token_id, bos_token_id=None, **work.SHAPES[kind],
    )  # fmt: skip
    model: Any = Qwen2ForCausalLM(config)
    embedding = model.model.embed_tokens.weight
    embedding[:, 0] = CONSTANT
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0  # nothing is added to it
        layer.input_layernorm.weight[0] = layer.post_attention_layernorm.weight[0] = 0  # no layer sees it
    probe = torch.randint(0, vocabulary, (4, 64), generator=torch.Generator().manual_seed(1))
    seen = model.model(input_ids=probe).last_hidden_state[..., 0].mean().item()
    chance = end_chance(mean * most, most)
    bias = -30.0 if kind == "qwen2-full" else math.log(chance / (1 - chance) * (vocabulary - 1))
    embedding[made.eos_token_id, 0] += bias / seen
    model.generation_config.eos_token_id = made.eos_token_id
    model.generation_config.pad_token_id = made.pad_token_id
    return model.eval(), made


def make(folder: Path, kind: str = "llama", vocabulary: int = 258, most: int = 128, mean: float = 0.45) -> None:
    if kind == "llama":
        from grpo_core.model.tiny import TinyShape, make_tiny

        model, made = make_tiny(seed=0, shape=TinyShape(hidden=128, layers=4, heads=4, feed_forward=384))
    else:
        model, made = qwen2(kind, vocabulary, most, mean)
    model.save_pretrained(folder)
    made.save_pretrained(folder)


if __name__ == "__main__":
    where, *given = sys.argv[1:]
    if given:
        make(Path(where), given[0], int(given[1]), int(given[2]), float(given[3]))
    else:
        make(Path(where))
