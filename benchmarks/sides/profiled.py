"""Where a step of Cohort's trainer spends its time, by torch.profiler: shares of sampling and of the update.

Operators are told apart by their name and by the sizes they worked on; what no operator accounts for is Python. A
profiled step is slower than others, most where there are many small operators, so only its shares mean something.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.replay import Replay
from grpo_core.trainer.grpo import GrpoTrainer
from grpo_core.training.single import SingleTraining

MATMUL = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul", "mkldnn::")
MOVES = ("aten::copy_", "aten::cat", "aten::index", "aten::index_select", "aten::gather", "aten::clone",
         "aten::scatter", "aten::index_add_", "aten::index_put_", "aten::_index_put_impl_")  # fmt: skip


@contextmanager
def last_step(last: int, vocabulary: int) -> Iterator[list[str]]:
    """Profiles step `last` of the run inside; the list holds the lines to print once it has ended."""
    lines: list[str] = []
    plain = GrpoTrainer._step

    def step(self: GrpoTrainer, number: int) -> None:
        if number != last:
            plain(self, number)
            return
        hooks = _hooks(self.policy.model)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
            plain(self, number)
        for hook in hooks:
            hook.remove()
        lines.extend(shares(list(watched.events() or []), vocabulary))

    replaced = [(GrpoTrainer, "_step", step), (LocalRollout, "generate", _named("phase sample", LocalRollout.generate)),
                (Replay, "__call__", _named("model decode", Replay.__call__)),
                (SingleTraining, "update", _named("phase update", SingleTraining.update))]  # fmt: skip
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, new in replaced:
            setattr(owner, name, new)
        yield lines
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


def _named(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        with record_function(name):
            return method(*given, **named)

    return call


def _hooks(model: Any) -> list[Any]:
    """Marks each pass through the layers: with one new position a row it is decoding."""
    entered: list[Any] = []

    def before(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen = named.get("input_ids", named.get("inputs_embeds", given[0] if given else None))
        kind = "decode" if seen is not None and seen.shape[1] == 1 and not torch.is_grad_enabled() else "pass"
        entered.append(record_function(f"model {kind}"))
        entered[-1].__enter__()

    def after(module: Any, given: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
        entered.pop().__exit__(None, None, None)

    inner = model.get_decoder()
    return [
        inner.register_forward_pre_hook(before, with_kwargs=True),
        inner.register_forward_hook(after, with_kwargs=True, always_call=True),
    ]


def kind_of(name: str, shapes: list[Any], vocabulary: int) -> str:
    """What an operator is counted as."""
    sizes = {size for shape in shapes or [] if isinstance(shape, list) for size in shape if isinstance(size, int)}
    if "scaled_dot_product" in name or ("softmax" in name and vocabulary not in sizes):
        return "attention"
    if vocabulary in sizes:
        return "vocabulary, products" if name.startswith(MATMUL) else "vocabulary, the rest"
    if name.startswith(MATMUL):
        return "products"
    return "moves" if name.startswith(MOVES) else "small operators"


def shares(events: list[Any], vocabulary: int) -> list[str]:
    """Lines `phase: seconds, share by kind`."""
    phases = [(one.name[6:], one.time_range) for one in events if one.name.startswith("phase ")]
    lines = []
    for phase, span in phases:
        whole = span.end - span.start
        inside = [one for one in events if span.start <= one.time_range.start < span.end]
        spent: dict[str, float] = defaultdict(float)
        passes: dict[str, float] = defaultdict(float)
        optimiser = [one.time_range for one in inside if one.name.startswith("Optimizer.step")]
        backward = 0.0
        operators: dict[str, float] = defaultdict(float)
        for one in inside:
            name, span_of = one.name, one.time_range
            if name.startswith("model "):
                passes[name[6:]] += span_of.end - span_of.start
            if name.startswith(("model ", "phase ", "Optimizer.")):
                continue
            if name.startswith("autograd::engine"):
                backward += span_of.end - span_of.start
            took = one.self_cpu_time_total
            if not name.startswith("autograd::"):
                operators[name] += took
            if any(part.start <= span_of.start < part.end for part in optimiser):
                spent["optimiser"] += took
            elif not name.startswith("autograd::"):
                spent[kind_of(name, one.input_shapes, vocabulary)] += took
        spent["python"] = max(0.0, whole - sum(spent.values()))
        listed = sorted(spent.items(), key=lambda pair: -pair[1])
        lines.append(f"PROFILE {phase} {whole / 1e6:.2f} s: " + ", ".join(f"{k} {v / whole:.0%}" for k, v in listed))
        more = [f"passes through the layers ({kind}) {took / whole:.0%}" for kind, took in sorted(passes.items())]
        if backward:
            more.append(f"backward {backward / whole:.0%}")
        lines.append(f"PROFILE {phase} of it: " + ", ".join(more))
        longest = sorted(operators.items(), key=lambda pair: -pair[1])[:8]
        lines.append(f"PROFILE {phase} operators: " + ", ".join(f"{k} {v / whole:.0%}" for k, v in longest))
    return lines
