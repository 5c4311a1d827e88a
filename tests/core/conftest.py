"""Runs that several files of tests compare with or resume: made once per worker."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from .runs import KILLED, STEPS, Result, make_home, make_letters, names_of_steps, result, setting


@pytest.fixture(scope="session")
def runs_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problems of one letter each, whose right answer is always k, with two untaught models."""
    return make_letters(tmp_path_factory.mktemp("letters"))


@pytest.fixture(scope="session")
def finished(runs_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run that nobody killed, of each setting. To be read."""

    @cache
    def of(name: str) -> Path:
        out = tmp_path_factory.mktemp("whole") / "run"
        assert setting(runs_home, name).train(out) == 0
        return out

    return of


@pytest.fixture(scope="session")
def whole(finished: Callable[[str], Path]) -> Callable[[str], Result]:
    """All that it says."""
    return cache(lambda name: result(finished(name)))


@pytest.fixture(scope="session")
def stopped(runs_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the plain setting that died in its last step, with the checkpoints of steps 2 and 3. To be copied."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    assert setting(runs_home, "plain").train(out, fault=f"updated:{STEPS}") == KILLED
    assert names_of_steps(out) == ["step-000002", "step-000003"]
    return out
