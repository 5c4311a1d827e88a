"""Small real classifiers, made in code and loaded through the real loader."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedTokenizerFast,
)

from grpo_core.data.problem import Problem
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.rewards.base import Unscored

torch.set_num_threads(1)
CHAT = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"


def sample(completion: str, *, prompt: str = "2+2=", answer: str = "4") -> Unscored:
    return Unscored(Problem("one", prompt, answer), completion)


def save_sequence(folder: Path, *, labels: dict[int, str] | None = None, seed: int = 0, chat: bool = False) -> Path:
    """A Llama that gives a text one number for each label."""
    return _save(folder, LlamaForSequenceClassification, labels or {0: "REWARD"}, seed=seed, chat=chat)


def save_token(folder: Path, *, labels: dict[int, str] | None = None, seed: int = 0) -> Path:
    """A Llama that gives each token one number for each label."""
    return _save(folder, LlamaForTokenClassification, labels or {0: "bad", 1: "good"}, seed=seed, chat=False)


def save_encoder(folder: Path) -> Path:
    """A BERT, which reads a text in both directions."""
    tokenizer = byte_tokenizer()
    config = BertConfig(
        **_shape(tokenizer, {0: "REWARD"}, hidden=16, heads=2),
        intermediate_size=32,
        max_position_embeddings=64,
    )
    return _write(folder, BertForSequenceClassification, config, tokenizer, seed=3)


def _shape(tokenizer: PreTrainedTokenizerFast, labels: dict[int, str], *, hidden: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": labels,
        "label2id": {name: number for number, name in labels.items()},
    }


def _llama(tokenizer: PreTrainedTokenizerFast, labels: dict[int, str], *, hidden: int, heads: int, **more: Any) -> Any:
    return LlamaConfig(
        **_shape(tokenizer, labels, hidden=hidden, heads=heads) | more,
        num_key_value_heads=heads,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def save_counting(folder: Path, kind: Any) -> Path:
    """One whose number is known by hand: at each token it is 8p / √(1 + 8p²), with p the share of ! among the bytes so
    far. A token's embedding is e₀ for ! and e₁ for all others; the norm makes √8 of that. Queries and keys are 0, so
    attention is the mean over all tokens so far; its values are e₂ for e₀ and 0 for e₁. So the sum is eᵢ + √8·p·e₂, of
    squared length 1 + 8p², and the last norm makes √8·√8·p / √(1 + 8p²) of its third part, which the head reads. Where
    there are two labels, the other's number is 0."""
    tokenizer = byte_tokenizer()
    labels = {0: "REWARD"} if kind is LlamaForSequenceClassification else {0: "bad", 1: "good"}
    config = _llama(
        tokenizer, labels, hidden=8, heads=1, intermediate_size=8, max_position_embeddings=64, rms_norm_eps=1e-12
    )
    model = kind(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        embedding = model.model.embed_tokens.weight
        embedding[:, 1] = 1
        (mark,) = tokenizer("!")["input_ids"]
        embedding[mark] = torch.eye(8)[0]
        attention = model.model.layers[0].self_attn
        attention.v_proj.weight[2, 0] = 1
        attention.o_proj.weight.copy_(torch.eye(8))
        model.score.weight[-1, 2] = 1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def counted(text: str) -> float:
    """What such a model gives at the end of a text."""
    share = text.count("!") / len(text.encode())
    return 8 * share / math.sqrt(1 + 8 * share**2)


def _save(folder: Path, kind: Any, labels: dict[int, str], *, seed: int, chat: bool) -> Path:
    tokenizer = byte_tokenizer()
    if chat:
        tokenizer.chat_template = CHAT
    sizes = {"num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 128, "initializer_range": 0.3}
    config = _llama(tokenizer, labels, hidden=16, heads=2, **sizes)
    return _write(folder, kind, config, tokenizer, seed=seed)


def _write(folder: Path, kind: Any, config: Any, tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
