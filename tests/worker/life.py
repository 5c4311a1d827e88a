"""A worker with all that is below it while it trains, to be killed in part."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from grpo_core.protocol.messages import ClaimReply
from grpo_core.runtime.cgroups import Cgroup
from tests.processes import clean_environment, kill_at_once, wait_for
from tests.worker.stand_in import ROOT
from worker.processes.orphans import RECORD, ProcessRecord
from worker.processes.reaper import process, processes

OURS = "ours"
"""The node whose attempts these are."""

# A trainer that is deaf to SIGTERM, with a child in a group of its own, one in a session of its own, and one that was
# forked twice and whose parent is gone. Each writes down its process id.
TRAINER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(): open(f"pid-{os.getpid()}", "w").close()
sleep = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
        "open(f'pid-{os.getpid()}', 'w').close(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", sleep], process_group=0)
subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note()
        time.sleep(600)
    os._exit(0)
os.wait()
note()
time.sleep(600)
"""

# A supervisor under a worker of its own, as Celery's main process is; it reaps when it is asked to.
WORKER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(600)"
SUPERVISOR = """
import json, os, sys
from pathlib import Path
from grpo_core.protocol.messages import ClaimReply
from worker.processes import orphans
from grpo_core.runtime.cgroups import Cgroup
from worker.processes.child import Child, become_subreaper
folder = Path(sys.argv[2])
if "no subreaper" not in sys.argv: become_subreaper()
held = orphans.HeldRecord(folder, ClaimReply.model_validate_json(sys.argv[1]), os.environ["TEST_NODE"])
env = {**os.environ, orphans.MARK: held.record.mark}
group = Cgroup.make("cohort-" + held.record.mark) if "group" in sys.argv else None
child = Child([sys.executable, "-c", sys.argv[3]], cwd=folder, env=env, log=folder / "log.txt", group=group)
held.started(child)
print(child._reaper.pid, flush=True)
for word in sys.stdin:
    print(json.dumps(child.reap() if word == "reap\\n" else child.ended()), flush=True)
"""


def claimed(attempt_id: int = 1, run_id: int = 1, fence: int = 1) -> ClaimReply:
    ids = {"attempt_id": attempt_id, "run_id": run_id, "fence": fence}
    lease = {"heartbeat_seconds": 1, "lease_seconds": 60}
    return ClaimReply.model_validate({**ids, **lease, "token": "t", "run_name": "a run", "config": {}, "files": []})


class Life:
    """A worker with a supervisor, a reaper, a trainer and that one's three descendants."""

    def __init__(self, folder: Path, claim: ClaimReply, *also: str, node: str, trainer: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        words = [sys.executable, "-c", WORKER, SUPERVISOR, claim.model_dump_json(), str(folder), trainer, *also]
        environment = clean_environment() | {"PYTHONPATH": str(ROOT), "TEST_NODE": node}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._worker = subprocess.Popen(words, env=environment, text=True, **pipes)
        self.reaper: int = self._read()
        self.record = ProcessRecord.model_validate_json((folder / RECORD).read_bytes())
        assert self.record.pid is not None
        self.worker, self.supervisor, self.trainer = self._worker.pid, self.record.supervisor_pid, self.record.pid
        if trainer == TRAINER:
            wait_for(lambda: len(self.members()) == 4, "the family has started")

    def _read(self) -> Any:
        assert self._worker.stdout is not None
        return json.loads(self._worker.stdout.readline())

    def ask(self, word: str) -> Any:
        """Of the supervisor: whether its trainer has `ended`, or, once it was asked to `reap` it, its status."""
        print(word, file=self._worker.stdin, flush=True)
        return self._read()

    def members(self) -> list[int]:
        """The trainer and its descendants."""
        return [int(path.name.removeprefix("pid-")) for path in self.folder.glob("pid-*")]

    def left(self) -> list[int]:
        """The descendants that live."""
        return [pid for pid in self.members() if pid != self.trainer and lives(pid)]

    def alive(self) -> list[int]:
        """Whoever lives below the supervisor."""
        known = {self.reaper, self.trainer, *self.members()}
        return sorted(row.pid for row in processes() if row.pid in known and row.lives)

    def kill(self, *names: str) -> None:
        """The supervisor, its worker and its reaper, or who is named. With its reaper the trainer dies."""
        pids = [getattr(self, name) for name in names or ("worker", "supervisor", "reaper")]
        kill_at_once(pids)
        dead = [*pids, self.trainer] if self.reaper in pids else pids
        wait_for(lambda: not any(map(lives, dead)), lambda: f"still alive: {dead}")

    def end(self) -> None:
        kill_at_once([self.worker, self.supervisor, *self.alive()])
        self._worker.communicate()
        if self.record.cgroup is not None:
            Cgroup((Path(self.record.cgroup),)).remove()


def lives(pid: int) -> bool:
    row = process(pid)
    return row is not None and row.lives
