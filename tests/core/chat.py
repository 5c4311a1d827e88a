"""Tokenizers with chat templates of eight families (tests/cases/chat_templates.yaml), trained here on a few lines."""

import json
from functools import cache
from typing import Any

import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.tables import FOLDER

FAMILIES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "chat_templates.yaml").read_text(encoding="utf-8"))
_LINES = ["The answer of the question is 12, as 5 and 7 are added.", "<think> first the user, then the assistant </s>"]


def _core(family: dict[str, Any]) -> Tokenizer:
    """Bytes merged as GPT-2, Llama 3 and Qwen do, or pieces with a mark for the blank as Gemma and Mistral do."""
    if family.get("pieces"):
        marked = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        first = [*family["tokens"], *(f"<0x{byte:02X}>" for byte in range(256))]
        trained = Tokenizer(models.BPE())
        trained.normalizer = marked
        trained.train_from_iterator(_LINES, trainers.BpeTrainer(vocab_size=420, special_tokens=first))
        model = json.loads(trained.to_str())["model"]
        merges = [tuple(pair) for pair in model["merges"]]
        core = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, byte_fallback=True, fuse_unk=True))
        core.normalizer = marked
        core.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        return core
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(_LINES, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return core


@cache
def tokenizer(name: str, *, adds_bos: bool = False, adds_eos: bool = False) -> Any:
    """Of a family; on request one that puts a beginning or an end of the text around what it is given."""
    family = FAMILIES[name]
    core = _core(family)
    strip = bool(family.get("strip_right"))
    special = [AddedToken(text, special=True, normalized=False, rstrip=strip) for text in family["tokens"]]
    core.add_special_tokens(special)
    core.add_tokens([AddedToken(text, normalized=False) for text in family.get("plain_tokens", ())])
    around = {"bos": family.get("bos", family["tokens"][0]), "eos": family["end"]}
    if adds_bos or adds_eos:
        written = f"{around['bos']} " * adds_bos + "$A" + f" {around['eos']}" * adds_eos
        numbers = [(text, core.token_to_id(text)) for text in dict.fromkeys(around.values())]
        core.post_processor = processors.TemplateProcessing(single=written, special_tokens=numbers)
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, bos_token=around["bos"], eos_token=around["eos"], clean_up_tokenization_spaces=False
    )
    made.chat_template = family["template"]
    return made
