"""Small real classifiers, made in code and loaded through the real loader."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForSequenceClassification

from grpo_core.data.problem import Problem
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import ScoreRequest

torch.set_num_threads(1)
CHAT = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"


def sample(completion: str, *, prompt: str = "2+2=", answer: str = "4") -> ScoreRequest:
    return ScoreRequest(Problem("one", prompt, answer), completion)


def scored(model: Any, *completions: str, **problem: str) -> list[ComponentScore]:
    return list(model.score([sample(text, **problem) for text in completions], lambda: None))


def labels_of(kind: Any) -> dict[int, str]:
    """A text has one number, a token two."""
    return {0: "REWARD"} if kind is LlamaForSequenceClassification else {0: "bad", 1: "good"}


def save(
    folder: Path, kind: Any, *, labels: dict[int, str] | None = None, seed: int = 0, chat: bool = False, **config: Any
) -> Path:
    """A classifier of this class with weights of chance."""
    tokenizer, labels = byte_tokenizer(), labels or labels_of(kind)
    if chat:
        tokenizer.chat_template = CHAT
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 128}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.3}
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    names = {"id2label": labels, "label2id": {name: number for number, name in labels.items()}}
    shape = kind.config_class(vocab_size=len(tokenizer), **{**sizes, **heads, **tokens, **names, **config})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_counting(folder: Path, kind: Any, *, head: float = 1.0, positions: int = 64) -> Path:
    """One whose number is known by hand: at each token it is 8p / √(1 + 8p²), with p the share of ! among the bytes so
    far. A token's embedding is e₀ for ! and e₁ for all others; the norm makes √8 of that. Queries and keys are 0, so
    attention is the mean over all tokens so far; its values are e₂ for e₀ and 0 for e₁. So the sum is eᵢ + √8·p·e₂, of
    squared length 1 + 8p², and the last norm makes √8·√8·p / √(1 + 8p²) of its third part, which the head reads. Where
    there are two labels, the other's number is 0."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "max_position_embeddings": positions}
    save(folder, kind, num_attention_heads=1, num_key_value_heads=1, rms_norm_eps=1e-12, **sizes)
    model = kind.from_pretrained(folder)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        embedding = model.model.embed_tokens.weight
        embedding[:, 1] = 1
        (mark,) = byte_tokenizer()("!")["input_ids"]
        embedding[mark] = torch.eye(8)[0]
        attention = model.model.layers[0].self_attn
        attention.v_proj.weight[2, 0] = 1
        attention.o_proj.weight.copy_(torch.eye(8))
        model.score.weight[-1, 2] = head
    model.save_pretrained(folder)
    return folder


def counted(text: str) -> float:
    """What such a model gives at the end of a text."""
    share = text.count("!") / len(text.encode())
    return 8 * share / math.sqrt(1 + 8 * share**2)
