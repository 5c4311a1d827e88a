"""What the two demos train: a model of 0.4 M that learns two-digit additions in two minutes, and a published instruct
model that learns sums after three examples in twenty."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DemoTask:
    """One demo: where its parts come from and what they are called."""

    run_name: str
    preset: str
    model_folder: str
    """In the home's models."""
    model_name: str
    data_folder: str
    """In the home: what `grpo demo-data` writes."""
    data_options: tuple[str, ...]
    data_names: tuple[str, str]
    """Of the training problems and the held-out ones."""
    source: str
    """Of the problems, as their pages show it."""
    verifier: str
    description: str
    reward: dict[str, Any]
    pretrained: Path | None = None
    """Folder of the base model; None builds it (`grpo cold-start`)."""
    public_sets: Path | None = None
    """Folder with gsm8k/, mgsm/ and xstest/ as they are published; those that are there are evaluated too."""
    suites: bool = False
    """Whether the starter suites are evaluated."""


ADDER = DemoTask(
    run_name="Two-digit addition",
    preset="demo",
    model_folder="demo-adder",
    model_name="two-digit adder, 0.4 M",
    data_folder="demo-data",
    data_options=(),
    data_names=("two-digit additions", "two-digit additions, held out"),
    source="Made by `grpo demo-data`: all two-digit additions, 512 of them held out.",
    verifier="r1-format + exact",
    description="0.8 for the right sum between answer tags, 0.2 for the form of think and answer tags.",
    # A completion that is right in form and answer earns 1.0; the form alone 0.2.
    reward={
        "components": [
            {"name": "correct", "kind": "exact", "weight": 0.8, "params": {"extract": "answer_tag"}},
            {"name": "format", "kind": "r1_format", "weight": 0.2},
        ]
    },
)


def chat_task(model: Path, public_sets: Path | None) -> DemoTask:
    """Sums of numbers to 20 by the instruct model in the folder `model`. Each problem is a conversation with three
    examples: the base model then answers about a third of the sums right, in a form that can be checked, so most groups
    hold something to compare. Completions are some sixteen tokens long, which two cores sample and learn in seconds."""
    return DemoTask(
        run_name="Sums in a conversation",
        preset="demo_chat",
        model_folder=model.name,
        model_name=model.name,
        data_folder="demo-chat-data",
        data_options=("--chat",),
        data_names=("sums to 20, as conversations", "sums to 20, as conversations, held out"),
        source="Made by `grpo demo-data --chat`: sums of two numbers from 1 to 20, 100 of them held out.",
        verifier="the number in answer tags",
        description="1 for the right sum between answer tags.",
        reward={"components": [{"name": "correct", "kind": "exact", "params": {"extract": "answer_tag"}}]},
        pretrained=model,
        public_sets=public_sets,
        suites=True,
    )
