"""What base models took to train, from numbers that their makers published: 6 × parameters × tokens, as Annex A.2.2 of
the Commission's guidelines approximates it.

An entry is here only where both numbers are published. Post-training (instruct variants), teachers of a distillation
and synthetic data are in none of them, so that a model took at least this. A wrong number is worse than none: what is
not here, a person can state.
"""

import re
from dataclasses import dataclass

READ = "2026-11-28"
"""Day on which the sources were read."""


@dataclass(frozen=True)
class Pretraining:
    """Of one model, or of its variants of the same size."""

    pattern: str
    """Of the whole Hub id."""
    parameters: float
    tokens: float
    source: str
    published: str
    """Month of the source."""
    caveat: str = ""

    @property
    def flop(self) -> float:
        return 6 * self.parameters * self.tokens


_SMOLLM2 = ("model card HuggingFaceTB/SmolLM2-{}, and arXiv 2502.02737", "2025-02")
_QWEN25 = ("model cards Qwen/Qwen2.5-*; Qwen2.5 technical report, arXiv 2412.15115", "2024-12")
_UP_TO_18 = "Its makers say up to 18 trillion tokens."
_QWEN3 = ("model cards Qwen/Qwen3-*; Qwen3 technical report, arXiv 2505.09388", "2025-05")
_ABOUT_36 = "Its makers say approximately 36 trillion tokens."
_LLAMA32 = ("model card of Llama 3.2", "2024-09")
_UP_TO_9 = (
    "Its makers say up to 9 trillion tokens; it was pruned from, and learned from, larger models not counted here."
)
_LLAMA31 = ("model card of Llama 3.1", "2024-07")
_OLMO2 = ("OLMo 2, arXiv 2501.00656, section 2.3", "2025-01")
_PYTHIA = ("model cards EleutherAI/pythia-*, and arXiv 2304.01373", "2023-04")
_PILE = 299_892_736_000


def _qwen25(size: str, parameters: float) -> Pretraining:
    pattern = rf"Qwen/Qwen2\.5-{re.escape(size)}(-Instruct)?"
    return Pretraining(pattern, parameters, 18e12, *_QWEN25, _UP_TO_18)


def _qwen3(size: str, parameters: float) -> Pretraining:
    return Pretraining(rf"Qwen/Qwen3-{re.escape(size)}(-Base)?", parameters, 36e12, *_QWEN3, _ABOUT_36)


def _smollm2(size: str, parameters: float, tokens: float) -> Pretraining:
    source, published = _SMOLLM2
    pattern = rf"HuggingFaceTB/SmolLM2-{re.escape(size)}(-Instruct)?"
    return Pretraining(pattern, parameters, tokens, source.format(size), published)


def _pythia(size: str, parameters: float) -> Pretraining:
    return Pretraining(rf"EleutherAI/pythia-{re.escape(size)}(-deduped)?", parameters, _PILE, *_PYTHIA)


PRETRAINING = (
    _smollm2("135M", 135e6, 2e12),
    _smollm2("360M", 360e6, 4e12),
    _smollm2("1.7B", 1.7e9, 11e12),
    _qwen25("0.5B", 0.49e9),
    _qwen25("1.5B", 1.54e9),
    _qwen25("3B", 3.09e9),
    _qwen25("7B", 7.61e9),
    _qwen25("14B", 14.7e9),
    _qwen3("0.6B", 0.6e9),
    _qwen3("1.7B", 1.7e9),
    _qwen3("4B", 4.0e9),
    _qwen3("8B", 8.2e9),
    _qwen3("14B", 14.8e9),
    Pretraining(r"meta-llama/Llama-3\.2-1B(-Instruct)?", 1.23e9, 9e12, *_LLAMA32, _UP_TO_9),
    Pretraining(r"meta-llama/Llama-3\.2-3B(-Instruct)?", 3.21e9, 9e12, *_LLAMA32, _UP_TO_9),
    Pretraining(
        r"meta-llama/(Meta-)?Llama-3\.1-8B(-Instruct)?",
        8e9,
        15e12,
        *_LLAMA31,
        "Its makers say about 15 trillion tokens.",
    ),
    Pretraining(r"allenai/OLMo-2-1124-7B(-SFT|-DPO|-Instruct)?", 7e9, 4.05e12, *_OLMO2),
    Pretraining(r"allenai/OLMo-2-1124-13B(-SFT|-DPO|-Instruct)?", 13e9, 5.6e12, *_OLMO2),
    Pretraining(r"allenai/OLMo-2-0325-32B(-SFT|-DPO|-Instruct)?", 32e9, 6.6e12, *_OLMO2),
    _pythia("70m", 70_426_624),
    _pythia("160m", 162_322_944),
    _pythia("410m", 405_334_016),
    _pythia("1b", 1_011_781_632),
    _pythia("1.4b", 1_414_647_808),
    _pythia("2.8b", 2_775_208_960),
    _pythia("6.9b", 6_857_302_016),
    _pythia("12b", 11_846_072_320),
)


def published(hub_id: str) -> Pretraining | None:
    """What the makers of this Hub repository published; None where the table has nothing of it."""
    return next((row for row in PRETRAINING if re.fullmatch(row.pattern, hub_id)), None)
