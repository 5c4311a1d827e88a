"""Stands in for the trainer where a real one cannot be made to behave so, or starts too slowly: writes real records,
then does as its mode says: finish, die, obey, deaf, fail, silent-death, wait-for-file, bad-spool, bad-record,
checkpoints, tokens, dataset, fill-disk, or steps: one every 50 ms until SIGTERM, or as many as its config plans. Given
checkpoints, it records that it resumes from the last of them.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import yaml

from grpo_core.files.checkpoint import file_entries, step_folder, verify_checkpoint, write_manifest
from grpo_core.files.run_folder import RunDir
from grpo_core.files.token_file import TokenRow
from grpo_core.records.types import CheckpointManifest, Resumed, SampledDataset, SkippedCheckpoint
from tests.factories.token_rows import columns, with_tokens
from tests.factories.worker import WHOLE_RUN, group, manifest, outcome, phase, step


def main(mode: str, out: str, *resume_from: str) -> NoReturn:
    """Ends without Python's own end, for it may run before Python counts as started."""
    folder = Path(out)
    print(f"mode {mode}", flush=True)
    if mode == "silent-death":
        os._exit(2)
    run = RunDir.create(folder, spool=True)
    if mode == "finish":
        end(run, *WHOLE_RUN)
    if mode in ("obey", "deaf", "checkpoints", "fill-disk", "steps"):
        # Its records are seen, and a stop may be asked for, before it has said how it takes one.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if mode == "steps":
        take_steps(run)
    if mode == "deaf":  # before its steps are seen: from then on tests look for what it has started
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    done = 0
    if resume_from:
        run.append(manifest())
        newest = verify_checkpoint(Path(resume_from[-1]))
        done = newest.step
        skipped = tuple(SkippedCheckpoint(path=path, reason="not whole") for path in resume_from[:-1])
        run.append(Resumed(step=newest.step, checkpoint=newest.path, skipped=skipped))
    run.append(phase("training", 100))
    for number in range(done + 1, done + 4):
        run.append(step(number))
        run.append(group(number))
    run.commit()
    print("three steps done", flush=True)
    match mode:
        case "die":
            run.append(step(4))  # never committed: the kill tears it
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            end(run, outcome("failed", code="training_error", message="the loss is not a number"), status=8)
        case "obey":
            stop_when_asked(run)
        case "wait-for-file":
            while not (folder / "go").exists():
                time.sleep(0.05)
            end(run, outcome())
        case "checkpoints":
            for number in (done + 2, done + 3):
                run.append(checkpoint_of(run, number))
            run.commit()
            stop_when_asked(run)
        case "tokens":
            for number in (done + 4, done + 5):
                run.append(step(number))
                tokens_of(run, number)
            end(run, outcome())
        case "dataset":
            run.append(sampled(folder))
            end(run, outcome())
        case "fill-disk":
            stop_when_asked(run)
            (folder / "ballast").write_bytes(bytes(int(os.environ["TORCH_BALLAST"])))
        case "bad-record":
            run.append(step(done + 9))
            run.commit()
        case "bad-spool":
            with next(run.spool_folder.glob("*.log")).open("ab") as segment:
                segment.write(b"not a frame, and longer than the head of one\n")
    while True:
        time.sleep(0.1)


def end(run: RunDir, *records: object, status: int = 0) -> NoReturn:
    for record in records:
        run.append(record)  # type: ignore[arg-type]
    run.close()
    os._exit(status)


def stop_when_asked(run: RunDir, done: int = 3) -> None:
    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        end(run, outcome("stopped", code="interrupted", message=f"Stopped after {done} steps"), status=75)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def take_steps(run: RunDir) -> NoReturn:
    planned = yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8"))["optim"]["steps"]
    run.append(manifest())
    run.append(phase("training", planned))
    for number in range(1, planned + 1):
        run.append(step(number))
        run.commit()
        stop_when_asked(run, number)  # between records: a signal in the middle of one would tear it
        time.sleep(0.05)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end(run, outcome().model_copy(update={"steps_done": planned, "steps_planned": planned}))


def sampled(folder: Path) -> SampledDataset:
    """The rows of a run of kind sample, written."""
    content = b"".join(
        b'{"prompt": "%d+1", "completion": "%d", "from": {"problem_id": "p%d", "reward": 1.0}}\n' % (n, n + 1, n)
        for n in range(200)
    )
    (folder / "dataset").mkdir()
    (folder / "dataset" / "rows.jsonl").write_bytes(content)
    return SampledDataset(
        path="dataset/rows.jsonl",
        content="conversations",
        rows=200,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        counts={"kept": 200, "wrong": 56},
    )


def tokens_of(run: RunDir, number: int) -> None:
    """Token arrays of the first sample of the step's group."""
    kept = group(number)
    pieces = [f"w{at} " for at in range(kept.samples[0].tokens)]
    records, content = with_tokens([kept], [TokenRow(kept.index, 0, bytes([number] * 16), columns(pieces))])
    path = run.token_file(number)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    for record in records:
        run.append(record)  # type: ignore[arg-type]
    run.commit()


def checkpoint_of(run: RunDir, number: int) -> CheckpointManifest:
    """A whole checkpoint of two files; those of two steps share one of them."""
    folder = run.checkpoints / step_folder(number)
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "same.txt").write_bytes(b"same" * 1000)
    (folder / "weights.txt").write_bytes(bytes([48 + number]) * 20_000)
    path = str(folder.relative_to(run.path))
    checkpoint = CheckpointManifest(step=number, path=path, files=file_entries(folder))
    write_manifest(folder, checkpoint)
    return checkpoint
