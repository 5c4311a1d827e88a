"""What the tests of this folder share: a line that is always shown, chances, a model, a stand."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.chances import LEASE, SEED
from tests.chaos.stand import Stand, standing


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a line that is shown whether the test passes or not."""

    def told(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", flush=True)

    return told


@pytest.fixture
def dice(request: pytest.FixtureRequest, say: Callable[[str], None]) -> random.Random:
    """Chances of this test alone, so that the same seed gives the same ones whatever ran before."""
    say(f"{request.node.name}: COHORT_CHAOS_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small real model, made once."""
    from grpo_core.model.tiny import save_tiny

    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny(folder, seed=0)
    return folder


@pytest.fixture(scope="session")
def stand(tiny_model: Path) -> Iterator[Stand]:
    """One for all tests that only kill workers and what hangs on them."""
    with standing(model=tiny_model, lease=LEASE) as made:
        yield made
