"""What a trainer may see, and what its end means."""

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from grpo_core.checkpoint_files import pruning
from worker.pins import PruningNow, write_pinned
from worker.run_folder import log_tail, progress, trainer_command, trainer_environment
from worker.verdict import ENDS, StopCause, death, verdict


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
        (outcome("stopped", "interrupted"), 75, "cancel", "cancelled", "cancelled"),
        (outcome("stopped", "interrupted"), 75, "pause", "paused", "paused"),
        (outcome("stopped", "interrupted"), 75, "drain", "preempted", "drained"),
        (outcome("stopped", "interrupted"), 75, "shutdown", "preempted", "worker_shutdown"),
        (outcome("stopped", "interrupted"), 75, "silence", "failed", "platform_unreachable"),
        (outcome("stopped", "interrupted"), 75, "disk", "paused", "disk_full"),
        (outcome("stopped", "interrupted"), 75, None, "failed", "trainer_killed"),
        (outcome("failed", "disk_full"), 10, None, "paused", "disk_full"),
        (outcome("failed", "disk_full"), 10, "pause", "paused", "disk_full"),
        (outcome("failed", "disk_full"), 10, "cancel", "failed", "disk_full"),
        (outcome("failed", "internal_error"), 1, "disk", "paused", "disk_full"),
        (None, 10, None, "paused", "disk_full"),
        (None, -signal.SIGKILL, "disk", "paused", "disk_full"),
        (None, -signal.SIGKILL, "cancel", "cancelled", "cancelled"),
        (None, -signal.SIGKILL, "pause", "paused", "paused"),
        (None, -signal.SIGKILL, None, "failed", "trainer_killed"),
        (None, -signal.SIGTERM, None, "failed", "trainer_killed"),
        (None, -signal.SIGABRT, None, "failed", "trainer_crashed"),
        (None, -signal.SIGXFSZ, None, "failed", "trainer_died"),
        (None, 2, None, "failed", "trainer_died"),
        ('{"status": "fini', -signal.SIGSEGV, None, "failed", "trainer_crashed"),
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


@pytest.mark.parametrize("stopped_for", ["cancel", "pause", "drain", "shutdown", "disk"])
def test_a_trainer_that_was_never_started(tmp_path: Path, stopped_for: StopCause) -> None:
    finish = verdict(folder=tmp_path, status=None, stopped_for=stopped_for, last_seq=0, fence=1)
    assert (finish.end, finish.code) == ENDS[stopped_for]
    assert (finish.exit_status, finish.signal) == (None, None)
    assert finish.message


def test_out_of_memory_is_told_apart_from_a_kill(tmp_path: Path) -> None:
    killed = verdict(folder=tmp_path, status=-9, stopped_for=None, last_seq=0, fence=1, out_of_memory=True)
    assert (killed.end, killed.code) == ("failed", "out_of_memory")
    assert "memory ran out" in killed.message
    crashed = verdict(folder=tmp_path, status=-11, stopped_for=None, last_seq=0, fence=1, out_of_memory=True)
    assert crashed.code == "trainer_crashed"


@pytest.mark.parametrize(("out_of_memory", "code"), [(True, "out_of_memory"), (False, "nccl_error")])
def test_memory_that_ran_out_for_another_process_of_the_run(tmp_path: Path, out_of_memory: bool, code: str) -> None:
    """The one that tells the end only met its silence."""
    (tmp_path / "outcome.json").write_text(outcome("failed", "nccl_error", "Connection closed by peer"))
    finish = verdict(folder=tmp_path, status=8, stopped_for=None, last_seq=0, fence=1, out_of_memory=out_of_memory)
    assert (finish.end, finish.code) == ("failed", code)
    assert ("memory ran out" in finish.message) == out_of_memory
    assert "Connection closed by peer" in finish.message


def test_a_full_disk_says_which_and_how_full(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text(outcome("failed", "disk_full", "No room for step 3"))
    message = verdict(folder=tmp_path, status=10, stopped_for=None, last_seq=0, fence=1).message
    assert str(tmp_path) in message
    assert socket.gethostname() in message
    assert "No room for step 3" in message
    assert re.search(r"\d (bytes|kB|MB|GB) are left", message)


def test_deaths_in_words() -> None:
    assert "SIGKILL" in death(-9)
    assert "memory" not in death(-9)
    assert "memory" in death(-9, out_of_memory=True)
    assert "signal 63" in death(-63)
    assert "status 2" in death(2)


def test_the_trainer_is_told_where_to_go_on_from() -> None:
    words = trainer_command(100)(Path("/r/a"), [Path("/c/2"), Path("/c/1")])
    assert words[-6:] == ["--spool-cap", "100", "--resume-from", "/c/2", "--resume-from", "/c/1"]
    assert "--resume-from" not in trainer_command(100)(Path("/r/a"), [])


def test_hosts_reach_the_trainer_only_when_given() -> None:
    told = trainer_environment({}, Path("/m"), hosts="a,b", remote_shell="ssh -tt")
    assert (told["GRPO_HOSTS"], told["GRPO_REMOTE_SHELL"]) == ("a,b", "ssh -tt")
    assert "GRPO_HOSTS" not in trainer_environment({}, Path("/m"))
    assert trainer_environment({}, Path("/m"), vllm_python=Path("/v/bin/python"))["GRPO_VLLM_PYTHON"] == "/v/bin/python"
    assert "GRPO_VLLM_PYTHON" not in trainer_environment({"GRPO_VLLM_PYTHON": "/other"}, Path("/m"))


def test_progress_is_read_as_the_trainer_wrote_it(tmp_path: Path) -> None:
    assert progress(tmp_path) is None
    (tmp_path / "progress.json").write_text('{"phase": "evaluating", "done": 3, "total": 8, "at": "x"}')
    told = progress(tmp_path)
    assert told is not None
    assert (told.phase, told.done, told.total) == ("evaluating", 3, 8)
    (tmp_path / "progress.json").write_text('{"phase": ')
    assert progress(tmp_path) is None


def test_pins_are_written_for_the_trainer(tmp_path: Path) -> None:
    write_pinned(tmp_path, [0, 40])
    write_pinned(tmp_path, [40])
    assert json.loads((tmp_path / "checkpoints" / "pinned.json").read_text()) == [40]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["pinned.json"]


def test_the_newest_known_checkpoint_that_is_there_stays(tmp_path: Path) -> None:
    """The platform heard of step 42 after the trainer had removed it: the one it heard of before stays."""
    for step in (41, 43):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    pins = tmp_path / "checkpoints" / "pinned.json"
    assert write_pinned(tmp_path, [7], [42, 41]) == 41
    assert json.loads(pins.read_text()) == [7, 41]
    assert write_pinned(tmp_path, [7], [43, 41]) == 43
    assert json.loads(pins.read_text()) == [7, 43]
    with pruning(tmp_path / "checkpoints") as mine:  # as the trainer does while it removes some
        assert mine
        with pytest.raises(PruningNow):
            write_pinned(tmp_path, [], [44])
    assert json.loads(pins.read_text()) == [7, 43]


def test_the_tail_is_the_last_lines_and_small(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"\xff" * 100_000 + b"\n" + b"".join(b"line %d\n" % n for n in range(100)))
    assert log_tail(tmp_path).splitlines() == [f"line {n}" for n in range(40, 100)]
    (tmp_path / "log.txt").write_bytes(b"\xff" * 100_000)
    assert log_tail(tmp_path) == "�" * 32_768
    (tmp_path / "log.txt").unlink()
    assert log_tail(tmp_path) == ""
