"""What a trainer may see, and what its end means."""

import signal
from pathlib import Path
from typing import Any

import pytest

from worker.run_folder import death, log_tail, trainer_environment, verdict


def test_the_trainer_sees_no_secret() -> None:
    outer = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost",
        "HF_TOKEN": "x",
        "HF_HUB_TOKEN": "x",
        "COHORT_NODE_TOKEN": "x",
        "COHORT_BROKER_URL": "amqp://user:password@host",
        "DJANGO_SETTINGS_MODULE": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PGPASSWORD": "x",
        "PYTHON_KEYRING_SECRET": "x",
    }
    assert trainer_environment(outer, Path("/models")) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost",
        "GRPO_MODELS": "/models",
        "PYTHONUNBUFFERED": "1",
    }


def outcome(status: str, code: str = "ok", message: str = "said so") -> str:
    return (
        f'{{"status": "{status}", "code": "{code}", "message": "{message}", "steps_done": 1, "steps_planned": 2, '
        '"totals": {}, "final_checkpoint": null}'
    )


@pytest.mark.parametrize(
    ("told", "status", "stopped_for", "end", "code"),
    [
        (outcome("finished"), 0, None, "finished", "ok"),
        (outcome("finished"), 0, "cancel", "finished", "ok"),  # it was done before the signal came
        (outcome("failed", "data_error"), 3, None, "failed", "data_error"),
        (outcome("failed", "data_error"), 3, "cancel", "failed", "data_error"),
        (outcome("cancelled", "interrupted"), 75, "cancel", "cancelled", "cancelled"),
        (outcome("cancelled", "interrupted"), 75, "shutdown", "preempted", "worker_shutdown"),
        (outcome("cancelled", "interrupted"), 75, "silence", "failed", "platform_unreachable"),
        (outcome("cancelled", "interrupted"), 75, None, "failed", "interrupted"),
        (None, -signal.SIGKILL, "cancel", "cancelled", "cancelled"),
        (None, -signal.SIGKILL, None, "failed", "trainer_died"),
        (None, 2, None, "failed", "trainer_died"),
        ('{"status": "fini', -signal.SIGSEGV, None, "failed", "trainer_died"),
    ],
)
def test_verdicts(tmp_path: Path, told: str | None, status: int, stopped_for: Any, end: str, code: str) -> None:
    if told is not None:
        (tmp_path / "outcome.json").write_text(told)
    (tmp_path / "log.txt").write_text("last words\n")
    finish = verdict(folder=tmp_path, status=status, stopped_for=stopped_for, last_seq=5, fence=1)
    assert (finish.end, finish.code, finish.last_seq) == (end, code, 5)
    assert (finish.exit_status, finish.signal) == ((status, None) if status >= 0 else (None, -status))
    assert finish.log_tail == "last words"


def test_deaths_in_words() -> None:
    assert "SIGKILL" in death(-9)
    assert "memory" in death(-9)
    assert "memory" not in death(-11)
    assert "status 2" in death(2)


def test_the_tail_is_the_last_lines_and_small(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"\xff" * 100_000 + b"\n" + b"".join(b"line %d\n" % n for n in range(100)))
    assert log_tail(tmp_path).splitlines() == [f"line {n}" for n in range(40, 100)]
    (tmp_path / "log.txt").write_bytes(b"\xff" * 100_000)
    assert log_tail(tmp_path) == "�" * 32_768
    (tmp_path / "log.txt").unlink()
    assert log_tail(tmp_path) == ""
