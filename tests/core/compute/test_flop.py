"""Operations: hand-worked cases, and what torch counts on a tiny model."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from grpo_core.compute.base_models import PRETRAINING, published
from grpo_core.compute.flop import Work, learned_share, training_flop
from grpo_core.compute.hardware import hardware
from grpo_core.compute.shape import Shape, routed_parameters, shape_of
from grpo_core.compute.thresholds import thresholds
from grpo_core.compute.words import format_flop, format_share, hardware_text, threshold_text
from grpo_core.files.weights import safetensors_header
from grpo_core.model.lora import add_adapters
from grpo_core.model.tiny import TinyShape
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.training.base import TrainRow
from grpo_core.training.single import SingleTraining
from tests.core.families import families
from tests.core.tiny import config, load, tiny_folder
from tests.tables import cases


@pytest.mark.parametrize(
    ("settings", "shape", "work", "parts", "total"),
    cases("compute/flop", "settings", "shape", "work", "parts", "total"),
)
def test_operations_by_hand(
    settings: Mapping[str, Any] | None,
    shape: dict[str, Any],
    work: dict[str, Any],
    parts: dict[str, float],
    total: float,
) -> None:
    counted = training_flop(config(**(settings or {})), Shape(**shape), Work(**work))
    assert {part.name: part.flop for part in counted.parts} == pytest.approx(parts)
    assert counted.total == pytest.approx(total)


@pytest.mark.parametrize(
    ("flop", "original", "key", "limit", "share", "words"),
    cases("compute/thresholds", "flop", "original", "key", "limit", "share", "words"),
)
def test_thresholds(
    flop: float | None, original: float | None, key: str, limit: float | None, share: float | None, words: str
) -> None:
    row = next(row for row in thresholds(flop, original=original) if row.key == key)
    assert (row.flop, row.share) == (
        None if limit is None else pytest.approx(limit, rel=1e-4),
        None if share is None else pytest.approx(share, rel=1e-3),
    )
    assert threshold_text(row) == words
    assert "compl" not in threshold_text(row)


def test_groups_without_signal_are_not_learned_from_where_they_are_skipped() -> None:
    sums = {"groups": 8.0, "groups_mixed": 2.0, "groups_phantom": 0.0}
    assert learned_share(config(), sums) == 0.25
    assert learned_share(config(engine={"skip_zero_advantage": False}), sums) == 1.0
    assert learned_share(config(algorithm={"kl": {"coef": 0.1}}), sums) == 1.0
    assert learned_share(config(), {}) == 1.0


def test_numbers_in_words() -> None:
    assert [format_flop(flop) for flop in (0, 950, 7.2e6, 9.96e9, 1e23 / 3)] == [
        "0 FLOP", "950 FLOP", "7.2 × 10⁶ FLOP", "1 × 10¹⁰ FLOP", "3.3 × 10²² FLOP",
    ]  # fmt: skip
    assert [format_share(share) for share in (0, 1e-12, 2.2e-9, 0.00049, 0.125, 1.5)] == [
        "0 %", "less than 0.00000001 %", "0.0000002 %", "0.05 %", "12.5 %", "150.0 %",
    ]  # fmt: skip


def test_hardware_time_is_a_bound_by_the_device_and_its_number_format() -> None:
    seconds = 100.0
    assert hardware("NVIDIA H100 80GB HBM3", device_seconds=seconds, dtype="bfloat16").flop == 9.89e16
    assert hardware("NVIDIA H100 80GB HBM3", device_seconds=seconds, dtype="float32").flop == 6.7e15
    half = hardware("NVIDIA A100-SXM4-80GB", device_seconds=seconds, dtype="bfloat16", utilisation=0.5)
    assert half.flop == 1.56e16
    assert hardware("Tesla T4", device_seconds=seconds, dtype="bfloat16").flop is None
    unknown = hardware("cpu", device_seconds=seconds, dtype="float32")
    assert unknown.flop is None
    assert (
        hardware_text(unknown)
        == "not known here: 100 s of devices on cpu, and the rate of this device is not known here"
    )
    assert hardware("cpu", device_seconds=seconds, dtype="float32", measured=2e10).flop == 2e12


@pytest.mark.parametrize(("device", "float32", "bfloat16"), cases("compute/devices", "device", "float32", "bfloat16"))
def test_a_device_has_its_maker_s_rate_or_none(device: str, float32: float | None, bfloat16: float | None) -> None:
    rates = [hardware(device, device_seconds=1, dtype=dtype).peak for dtype in ("float32", "bfloat16")]
    assert rates == [float32, bfloat16]


def test_published_pretraining_is_six_times_parameters_times_tokens_with_a_source() -> None:
    row = published("Qwen/Qwen2.5-1.5B-Instruct")
    # Annex A.3 of the guidelines, model D: 1.54 billion parameters, 18 trillion tokens.
    assert row is not None
    assert row.flop == pytest.approx(1.663e23, rel=1e-3)
    assert published("Qwen/Qwen2.5-1.5B-Coder") is None
    assert published("somebody/Qwen2.5-1.5B") is None
    for row in PRETRAINING:
        assert row.source
        assert row.published
        assert row.flop > 1e19


PROMPTS, SAMPLES, LENGTH = [[10, 20, 30, 40, 50, 60], [11, 21, 31, 41, 51, 61]], 4, 24
WITHIN = 0.12
"""Of what torch counts: it sees no attention that is a kernel of its own, and adapters need no gradient of what goes
into the first layer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "base", shape=TinyShape(64, 6, 4, 192, 512))


def test_sampling_takes_what_torch_counts(folder: Path) -> None:
    policy = load(folder)
    policy.eos_ids = frozenset()
    with FlopCounterMode(display=False) as counter:
        LocalRollout(policy, max_rows=64, max_tokens=100_000).generate(
            PROMPTS, samples=SAMPLES, decoding=Decoding(max_tokens=LENGTH), key=(1,)
        )
    rows = len(PROMPTS) * SAMPLES
    # The last token of a completion is sampled and goes through no model; a prompt goes through once for its group.
    read = len(PROMPTS) * len(PROMPTS[0]) + rows * (LENGTH - 1)
    work = Work(tokens=read, completion_tokens=rows * LENGTH, completions=rows)
    assert training_flop(config(), policy.shape(), work).part("sampling") == pytest.approx(
        counter.get_total_flops(), rel=WITHIN
    )


TRPO = {
    "algorithm": {"loss": "unclipped"},
    "optim": {"method": "trpo", "trpo": {"cg_iterations": 4, "line_search_steps": 1}},
}
"""With one length to try, and too few iterations to end before the last."""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": {"inner_iterations": 2}},
        {"algorithm": {"mini_batches": 2}},
        {"model": {"path": "base", "lora": {"rank": 2}}},
        TRPO,
        TRPO | {"model": {"path": "base", "lora": {"rank": 2}}},
    ],
    ids=["all weights", "two passes", "mini-batches", "LoRA", "TRPO", "TRPO with LoRA"],
)
def test_an_update_takes_what_torch_counts(folder: Path, settings: dict[str, Any]) -> None:
    policy = load(folder)
    run = config(**settings, engine={"threads": 1, "layout": "right"})
    if run.model.lora.rank:
        add_adapters(policy, run.model.lora, seed=1)
    training = SingleTraining(policy, None, run)
    rows = [TrainRow(PROMPTS[0], list(range(20 + n, 20 + n + LENGTH)), n + 1.0, True) for n in range(SAMPLES)]
    with FlopCounterMode(display=False) as counter:
        training.update(rows, step=1)
    whole = sum(len(row.prompt) + len(row.completion) for row in rows)
    work = Work(tokens=whole, completion_tokens=len(rows) * LENGTH, completions=len(rows))
    flop = training_flop(run, policy.shape(), work)
    parts = flop.part("old") + flop.part("update") + flop.part("trust_region")
    assert parts == pytest.approx(counter.get_total_flops(), rel=WITHIN)


@pytest.mark.parametrize("make", families("mixtures", "all").values(), ids=families("mixtures", "all"))
def test_of_a_mixture_of_experts_those_count_that_a_token_goes_through(make: Callable[[], Any], tmp_path: Path) -> None:
    model = make()
    model.set_experts_implementation("eager")  # torch does not count products of stacked experts
    weights = [(name, weight.numel()) for name, weight in model.named_parameters()]
    sizes = {"parameters": sum(numel for _, numel in weights), "own_head": not model.config.tie_word_embeddings}
    shape = shape_of(model.config.to_dict(), **sizes, routed=routed_parameters(weights))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(3, 43)[None])
    counted = training_flop(config(), shape, Work(tokens=40)).part("sampling")
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.01)
    model.save_pretrained(tmp_path)  # experts one by one, as on the Hub
    header = safetensors_header(tmp_path / "model.safetensors")
    saved = routed_parameters((name, math.prod(entry["shape"])) for name, entry in header.items())
    assert saved == routed_parameters(weights) > shape.inactive > 0


def test_the_shape_of_a_loaded_model_is_that_of_its_config(folder: Path) -> None:
    policy = load(folder)
    table = 64 * policy.rows
    assert policy.shape() == Shape(
        parameters=policy.parameters(), lookup=table, head=table, layers=6, attention=64, experts=False
    )
