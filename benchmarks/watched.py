"""What it costs a trainer to be watched: the same run alone, watched by a worker that ships every record to Cohort's
web server on this machine, and watched with the platform gone. Prints one table, then a line per target.

    .venv/bin/python benchmarks/watched.py [--rounds 2] [--steps 12]

The work is that of benchmarks/trl.py's model and prompts, 32 groups kept a step at most, no evaluation, no checkpoint
but the first. Step times of one run and the next differ by more than the target here, so what counts is taken inside
the trainer: the seconds that it spends writing, all of its own files and the spool, as a share of its step. That is
more than being watched costs, because the files are written in any case. The step times stand beside it, and the CPU
time of the worker, which has the same cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

import work  # noqa: E402
from cohort_web import CohortWeb, free_port  # noqa: E402
from embedded import database  # noqa: E402

from grpo_core.cli.main import OPENMP_POLICY  # noqa: E402

WAYS = ("alone", "watched", "platform gone")
SHARE = 0.01
CONFIG = """
model: {path: model}
data: {path: data.jsonl}
reward: {components: [{name: answer, kind: exact}]}
sampling: {prompts_per_step: 16, group_size: 8, max_completion_tokens: 128}
optim: {lr: 1.0e-5, steps: STEPS}
eval: {before: false, after: false}
checkpoints: {every: 100000, final: false}
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--steps", type=int, default=12, help="of each run; the first one warms up")
    chosen = options.parse_args()
    with database() as (folder, postgres), closing(CohortWeb(folder / "home", postgres.url, free_port())) as web:
        subprocess.run([sys.executable, HERE / "sides/make_model.py", folder / "model"], check=True)
        lines = [{"prompt": prompt, "answer": "none"} for prompt in work.prompts()]
        (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "config.yaml").write_text(CONFIG.replace("STEPS", str(chosen.steps)))
        web.prepare(points=0, writers=chosen.rounds)
        web.start()
        step: dict[str, list[float]] = {way: [] for way in WAYS}
        writing: dict[str, list[float]] = {way: [] for way in WAYS}
        cpu: dict[str, list[float]] = {way: [0.0] for way in WAYS}
        for number in range(1, chosen.rounds + 1):
            for way in WAYS:
                said, used = train(folder, folder / f"{way.replace(' ', '-')}-{number}", way, web, number)
                step[way] += said["step"]
                writing[way] += said["writing"]
                if used is not None:
                    cpu[way].append(used / chosen.steps)
    return report(step, writing, cpu)


def train(
    folder: Path, out: Path, way: str, web: CohortWeb, number: int
) -> tuple[dict[str, list[float]], float | None]:
    """One run of the trainer; (what it said, CPU seconds of the worker beside it)."""
    out.mkdir()
    worker = None
    if way != "alone":
        url = f"http://127.0.0.1:{web.port if way == 'watched' else free_port()}"
        words = [sys.executable, str(HERE / "sides/watched_worker.py"), url, str(number), web.tokens[number], str(out)]
        worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    spool = [] if worker is None else ["--spool"]
    words = [sys.executable, str(HERE / "sides/watched_trainer.py"), str(folder / "config.yaml"), str(out), *spool]
    environment = os.environ | OPENMP_POLICY  # as `grpo` sets it
    done = subprocess.run(words, cwd=HERE.parent, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    said: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    if worker is None:
        return said, None
    told, _ = worker.communicate("stop\n")
    answer = json.loads(told)
    records = sum(1 for _ in (out / "metrics.jsonl").open())
    if way == "watched" and answer["acked_seq"] <= records:
        raise RuntimeError(f"the platform holds {answer['acked_seq']} records of a run with {records} steps")
    return said, answer["cpu"]


def report(step: dict[str, list[float]], writing: dict[str, list[float]], cpu: dict[str, list[float]]) -> int:
    print(f"{'':14} {'s/step, median':>15} {'fastest':>8} {'writing, ms':>12} {'of the step':>12}", end="")
    print(f" {'worker CPU, ms/step':>20}")
    share = {}
    for way in WAYS:
        share[way] = statistics.median(wrote / whole for wrote, whole in zip(writing[way], step[way], strict=True))
        beside = 1000 * statistics.mean(cpu[way][1:] or [0.0])
        times = (
            f"{statistics.median(step[way]):15.3f} {min(step[way]):8.3f} {1000 * statistics.median(writing[way]):12.2f}"
        )
        print(f"{way:14} {times} {share[way]:12.2%} {beside:20.1f}")
    for way in WAYS[1:]:
        name = f"trainer_writing_share_{way.replace(' ', '_')}"
        print(f"RESULT {name} {share[way]:.4f} {SHARE} {'ok' if share[way] < SHARE else 'miss'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
