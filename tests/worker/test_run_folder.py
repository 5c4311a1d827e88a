"""What a trainer may see, what its end means, and which earlier attempts' checkpoints leave the disk: those that the
platform names, and nothing else.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from grpo_core.files.checkpoint import pruning
from grpo_core.protocol.messages import OldCheckpoint
from tests.tables import cases
from worker.exit_cause import attempt_finish
from worker.folders.run_folder import (
    Cleanup,
    PruningNow,
    log_tail,
    progress,
    trainer_command,
    trainer_environment,
    write_pinned,
)
from worker.node import facts


def test_the_trainer_sees_no_secret() -> None:
    seen = {"PATH", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "HTTPS_PROXY", "no_proxy"}
    judges = {"GRPO_JUDGE_KEY", "GRPO_JUDGE_KEY_HOSTS", "GRPO_JUDGE_KEY_OPENAI", "GRPO_JUDGE_ALLOW", "GRPO_SANDBOX"}
    secrets = {"HF_TOKEN", "HF_HUB_TOKEN", "COHORT_NODE_TOKEN", "COHORT_BROKER_URL", "DJANGO_SETTINGS_MODULE"}
    others = {"AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "PYTHON_KEYRING_SECRET", "OPENAI_API_KEY", facts.REPORT_VARIABLE}
    others |= {"GRPO_JUDGE_KEY_MY_TOKEN", "GRPO_JUDGE_KEYS", "GRPO_VLLM_PYTHON"}
    outer = dict.fromkeys(seen | judges | secrets | others, "x")
    own = {"GRPO_MODELS": "/models", "PYTHONUNBUFFERED": "1"}
    assert trainer_environment(outer, Path("/models")) == dict.fromkeys(seen | judges, "x") | own
    more = trainer_environment({}, Path("/m"), hosts="a,b", remote_shell="ssh -tt", vllm_python=Path("/v/bin/python"))
    hosts = {"GRPO_HOSTS": "a,b", "GRPO_REMOTE_SHELL": "ssh -tt", "GRPO_VLLM_PYTHON": "/v/bin/python"}
    assert more == hosts | own | {"GRPO_MODELS": "/m"}


def outcome(status: str, code: str = "ok", message: str = "said so") -> str:
    return (
        f'{{"status": "{status}", "code": "{code}", "message": "{message}", "steps_done": 1, "steps_planned": 2, '
        '"totals": {}, "final_checkpoint": null}'
    )


@pytest.mark.parametrize(
    ("written", "status", "stopped_for", "out_of_memory", "end", "code"),
    cases("worker/verdicts", "outcome", "status", "stopped_for", "out_of_memory", "end", "code"),
)
def test_verdicts(
    tmp_path: Path, written: Any, status: int | None, stopped_for: Any, out_of_memory: Any, end: str, code: str
) -> None:
    if written is not None:
        (tmp_path / "outcome.json").write_text(written[0] if written[0].startswith("{") else outcome(*written))
    (tmp_path / "log.txt").write_text("last words\n")
    words = {"stopped_for": stopped_for, "out_of_memory": bool(out_of_memory), "last_seq": 5, "fence": 1}
    finish = attempt_finish(folder=tmp_path, status=status, **words)
    assert (finish.end, finish.code, finish.last_seq) == (end, code, 5)
    assert (finish.exit_status, finish.signal) == ((status, None) if status is None or status >= 0 else (None, -status))
    assert finish.message
    assert finish.log_tail == "last words"


def test_a_full_disk_says_which(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text(outcome("failed", "disk_full", "No room for step 3"))
    message = attempt_finish(folder=tmp_path, status=10, stopped_for=None, last_seq=0, fence=1).message
    assert all(part in message for part in (str(tmp_path), socket.gethostname(), "No room for step 3"))


def test_the_trainer_is_told_where_to_go_on_from() -> None:
    words = trainer_command(100)(Path("/r/a"), [Path("/c/2"), Path("/c/1")])
    assert words[-6:] == ["--spool-cap", "100", "--resume-from", "/c/2", "--resume-from", "/c/1"]
    assert "--resume-from" not in trainer_command(100)(Path("/r/a"), [])


def test_progress_is_read_as_the_trainer_wrote_it(tmp_path: Path) -> None:
    assert progress(tmp_path) is None
    (tmp_path / "progress.json").write_text('{"phase": "evaluating", "done": 3, "total": 8, "at": "x"}')
    read = progress(tmp_path)
    assert read is not None
    assert (read.phase, read.done, read.total) == ("evaluating", 3, 8)
    (tmp_path / "progress.json").write_text('{"phase": ')
    assert progress(tmp_path) is None


def test_the_newest_known_checkpoint_that_is_there_stays(tmp_path: Path) -> None:
    """The platform heard of step 42 after the trainer had removed it: the one it heard of before stays."""
    for step in (41, 43):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    pins = tmp_path / "checkpoints" / "pinned.json"
    write_pinned(tmp_path, [0, 40])
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
    assert log_tail(tmp_path / "log.txt").splitlines() == [f"line {n}" for n in range(40, 100)]
    (tmp_path / "log.txt").write_bytes(b"\xff" * 100_000)
    assert log_tail(tmp_path / "log.txt") == "�" * 32_768
    (tmp_path / "log.txt").unlink()
    assert log_tail(tmp_path / "log.txt") == ""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for name in ("step-000004", "step-000005", "final"):
        folder = tmp_path / "attempt-1" / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
    (tmp_path / "attempt-1/inputs/checkpoint-step-000002").mkdir(parents=True)
    (tmp_path / "attempt-1/inputs/problems.jsonl").write_text("{}")
    return tmp_path


def old(path: str, fence: int = 1) -> OldCheckpoint:
    return OldCheckpoint(fence=fence, path=path)


def test_old_checkpoints_go_one_at_a_time_and_each_is_told(run_folder: Path) -> None:
    leftovers = Cleanup(run_folder)
    both = [old("checkpoints/step-000004"), old("checkpoints/step-000005")]
    leftovers.remove(both)
    assert leftovers.removed == both[:1]
    assert not (run_folder / "attempt-1/inputs/checkpoint-step-000002").exists(), "a fetched copy is needed no longer"
    leftovers.remove(both)
    assert leftovers.removed == both
    gone = old("checkpoints/step-000001")
    leftovers.remove([gone])
    assert leftovers.removed == [*both, gone], "one that is gone already is told too"
    left = sorted(str(path.relative_to(run_folder)) for path in run_folder.rglob("*") if path.is_file())
    assert left == ["attempt-1/checkpoints/final/state.json", "attempt-1/inputs/problems.jsonl"]


@pytest.mark.parametrize(
    ("path", "fence"),
    [
        ("checkpoints/step-000004", 2),
        ("checkpoints/final", 1),
        ("inputs", 1),
        ("checkpoints", 1),
    ],
)
def test_what_is_not_here_or_no_checkpoint_is_neither_removed_nor_told(run_folder: Path, path: str, fence: int) -> None:
    before = sorted(run_folder.rglob("*"))
    leftovers = Cleanup(run_folder)
    leftovers.remove([old(path, fence)])
    assert leftovers.removed == []
    assert sorted(run_folder.rglob("*")) == before
