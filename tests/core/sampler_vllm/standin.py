"""A stand-in for vLLM that fails where a test wants it to: as much of it as our engine asks for, and no model in it."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

CALLS = ("start", "load", "wake", "step")


class Failing:
    """vLLM's engine. One of CALLS raises."""

    def __init__(self, call: str, error: Exception) -> None:
        assert call in CALLS
        self._fails = (call, error)
        self._asked: list[str] = []
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def _at(self, call: str) -> None:
        if call == self._fails[0]:
            raise self._fails[1]

    def from_engine_args(self, arguments: Any) -> "Failing":
        self._at("start")
        return self

    def collective_rpc(self, method: str, args: Any = ()) -> None:
        self._at("load")

    def reset_prefix_cache(self) -> bool:
        return True

    def sleep(self, level: int) -> None:
        pass

    def wake_up(self) -> None:
        self._at("wake")

    def add_request(self, name: str, tokens: Any, params: Any) -> str:
        self._asked.append(name)
        return name

    def has_unfinished_requests(self) -> bool:
        return bool(self._asked)

    def step(self) -> list[Any]:
        self._at("step")
        raise AssertionError("it can do nothing but fail")

    def abort_request(self, names: list[str], internal: bool) -> None:
        self._asked.clear()


def modules(call: str, error: Exception) -> dict[str, ModuleType]:
    """vLLM's, by name, to be laid into sys.modules."""
    parts: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": SimpleNamespace},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": SimpleNamespace},
        "vllm.exceptions": {"VLLMError": type("VLLMError", (Exception,), {})},
        "vllm.inputs": {"tokens_input": list},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.llm_engine": {"LLMEngine": Failing(call, error)},
    }
    made = {}
    for name, holds in parts.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(holds)
    return made


def serve(call: str, error: Exception) -> int:
    """The server, with the stand-in for its vLLM; exit status."""
    sys.modules.update(modules(call, error))
    from grpo_core.rollout.vllm.server import main

    return main()
