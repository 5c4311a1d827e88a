"""One run over several devices and machines: `grpo train` starts itself once for each device, through torchrun.

On one machine the command becomes torchrun; over several, hosts.py starts a part on each. Loads no torch: the
part of each machine is grpo_core/distributed/torchrun.py.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from grpo_core.config.kinds import AnyConfig
from grpo_core.config.run import EngineConfig
from grpo_core.distributed.environment import PARENT, environment, torchrun
from grpo_core.distributed.hosts import over_hosts
from grpo_core.errors import ConfigError

MARKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""What torchrun sets for each process that it starts: its rank, how many there are, its rank on this machine."""
_PR_SET_PDEATHSIG = 1


def needed(engine: EngineConfig) -> bool:
    """Whether this process is to start others in its place. Where torchrun has started it, False, after a check that
    torchrun started as many as the config says. Raises ConfigError."""
    expected = engine.devices * engine.nodes
    if not any(mark in os.environ for mark in MARKS):
        return expected > 1
    started = _started()
    follow_parent()
    if started != expected:
        line = f"torchrun --nnodes {engine.nodes} --nproc-per-node {engine.devices} -m grpo_core.cli.main train …"
        raise ConfigError(
            f"torchrun started {started} processes, and the config says {expected} (engine.devices {engine.devices} × "
            f"engine.nodes {engine.nodes}). Set these to what is meant, or start it with: {line}; "
            "`grpo train` alone starts what the config says"
        )
    return False


def _started() -> int:
    """How many processes torchrun has started. Raises ConfigError for variables that torchrun cannot have set."""
    marks = {mark: os.environ[mark] for mark in MARKS if mark in os.environ}
    shown = ", ".join(f"{mark}={value!r}" for mark, value in marks.items())
    if absent := [mark for mark in MARKS if mark not in marks]:
        wrong = f"no {' and no '.join(absent)}"
    elif odd := [f"{mark}={value!r}" for mark, value in marks.items() if not value.isdecimal()]:
        wrong = f"{', '.join(odd)} is no number"
    elif int(marks["RANK"]) >= (started := int(marks["WORLD_SIZE"])):
        wrong = f"there is no rank {marks['RANK']} among {started}"
    else:
        return started
    raise ConfigError(
        f"the environment has {shown}, and {wrong}. These come from torchrun, all of them together; where something "
        f"else has set them, take them away: env -u {' -u '.join(marks)} grpo train …"
    )


def launch(config: AnyConfig, words: Sequence[str], *, config_file: Path, also: Sequence[Path] = ()) -> int:
    """Run `grpo <words>` once for each device; returns the exit status of the first part that failed, or 0. Where a
    process was killed by a signal, this one ends by the same. On one machine it does not return: it becomes torchrun.

    `also`: what, besides the config and its inputs, every machine must find that the first one has, such as a
    checkpoint. Raises ConfigError.
    """
    engine = config.engine
    if engine.nodes == 1:
        command = torchrun(engine, ["--standalone"], words)
        os.environ.update(environment(engine))
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(command[0], command)
    here = [path for path in also if path.exists()]  # the trainer reports what is missing here
    status = over_hosts(config, words, inputs=[config_file, *_inputs(config, config_file), *here])
    if status < 0:
        end_by(-status)
    return status


def _inputs(config: AnyConfig, config_file: Path) -> list[Path]:
    """Local files and folders that the config names and that are here; the trainer reports missing ones."""
    base = config_file.resolve().parent
    parts = (config.data, config.eval)
    named = [base / Path(part.path).expanduser() for part in parts if part.path and part.hub is None]
    if config.model.revision is None:
        model = Path(config.model.path).expanduser()
        folders = [base / model, Path(os.environ.get("GRPO_MODELS", base)) / model]  # as model.load.find_model looks
        named += [folder for folder in folders if folder.is_dir()][:1]
    return [path for path in named if path.exists()]


def follow_parent() -> None:
    """End at once when the process that GRPO_PARENT names, our parent, ends; does nothing without the variable."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it had ended before that
        end_by(signal.SIGKILL)


def end_by(number: int) -> NoReturn:
    """End as a process does that this signal killed, so that the parent sees the cause."""
    sys.stdout.flush()
    sys.stderr.flush()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # a signal that does not kill
