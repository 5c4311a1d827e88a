"""Review of a run with a million stored samples: its pages over HTTP, and what storing a sample costs. Prints one
table, then a line per target.

    .venv/bin/python benchmarks/review_load.py --part list [--samples 1000000] [--rounds 20]
    .venv/bin/python benchmarks/review_load.py --part group
    .venv/bin/python benchmarks/review_load.py --part ingest --ingest-against REV [--pairs 30]

The web server runs as `cohort up` starts it, over an embedded database; one client with a kept connection asks. Other
runs have samples in the same tables. Ingest is that of this tree and of the commit REV, each with a database of its
own, batch by batch in turn: what is compared is the median of both, and the median of the pairs' ratios.
"""

import argparse
import http.client
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

from cohort_web import CohortWeb, free_port, signed_in, stock_maker  # noqa: E402
from embedded import database  # noqa: E402
from many_samples import OTHERS, fill  # noqa: E402
from runs_list import get  # noqa: E402

LIST_P95_MS, GROUP_P95_MS, GROUP_KB, INGEST_RATIO = 300, 150, 200, 1.05
PAGES = {
    "all, highest |A|": "",
    "lowest reward": "sort=reward",
    "longest": "sort=-tokens",
    "by a component": "component=answer&sort=-component",
    "newest": "sort=-step",
    "most clipped": "sort=-clipped",
    "format only": "flag=format_only",
    "no reasoning": "flag=no_reasoning",
    "truncated": "finish=length",
    "with errors": "error=yes",
    "reward and length": "reward_min=1&tokens_min=350",
    "a component": "component=format&component_max=0",
    "ten steps": "step_min=2000&step_max=2010",
    "a problem": "problem=p77",
    "right, judged wrong": "verifier=right&judgement=wrong",
    "not judged": "judgement=none",
    "a page far on": "sort=-tokens&after=-300.0~5000",
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", choices=("list", "group", "ingest"), default="list")
    options.add_argument("--samples", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=20, help="requests of each page")
    options.add_argument("--ingest-against", metavar="REV", help="of --part ingest: the commit to compare with")
    options.add_argument("--pairs", type=int, default=30, help="of --part ingest")
    chosen = options.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if chosen.part == "ingest":
        if chosen.ingest_against is None:
            options.error("--part ingest needs --ingest-against REV")
        return ingest(chosen.ingest_against, pairs=chosen.pairs)
    with database() as (folder, postgres), closing(CohortWeb(folder / "home", postgres.url, free_port())) as web:
        web.migrate()
        run, cookie = prepare(chosen.samples)
        web.start()
        link = http.client.HTTPConnection("127.0.0.1", web.port, timeout=120)
        part = pages if chosen.part == "list" else group
        with closing(link):
            part(link, cookie, run, rounds=chosen.rounds)
    return 0


def prepare(samples: int) -> tuple[int, str]:
    """(the large run, the cookie of a signed-in reviewer). A few hundred of its samples are judged."""
    from django.db import connection

    from cohort.accounts.models import User
    from cohort.review.models import Annotation, Sample

    maker = stock_maker()
    reward = {
        "components": [{"name": "format", "kind": "r1_format", "weight": 0.2}, {"name": "answer", "kind": "exact"}]
    }
    for number in range(OTHERS + 1):
        run = maker.run(f"sampled {number}", state="training")
        run.config["reward"] |= reward
        run.save()
        fill(run, maker.attempt(run), count=samples if number == OTHERS else samples // 50, seed=number)
    rita = User.objects.get(username="rita")
    judged = Sample.objects.filter(run=run, step__lte=100, index=0)[:500].values_list("pk", flat=True)
    Annotation.objects.bulk_create(Annotation(sample_id=pk, by=rita, verdict="wrong") for pk in judged)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute(
            "SELECT pg_size_pretty(pg_table_size('review_sample')), pg_size_pretty(pg_relation_size('sample_by_step'))"
        )
        print("samples: {}, their index: {}".format(*cursor.fetchone()))
    return run.pk, signed_in("rita")[0]


def pages(link: http.client.HTTPConnection, cookie: str, run: int, *, rounds: int) -> None:
    print(f"{'':22} {'median, ms':>11} {'p95, ms':>8} {'KB':>6} {'counts, median':>15} {'p95, ms':>8}")
    every: list[float] = []
    counts: list[float] = []
    for name, query in PAGES.items():
        at = f"/p/ours/runs/{run}/samples/?{query}"
        took, size = _measured(link, cookie, at, rounds=rounds)
        counted, _ = _measured(link, cookie, f"{at}&facets=1", rounds=rounds, headers={"HX-Request": "true"})
        print(
            f"{name:22} {statistics.median(took):11.1f} {_p95(took):8.1f} {size / 1000:6.0f} "
            f"{statistics.median(counted):15.1f} {_p95(counted):8.1f}",
            flush=True,
        )
        every += took
        counts += counted
    _result("samples_p95_ms", _p95(every), LIST_P95_MS)
    _result("sample_counts_p95_ms", _p95(counts), LIST_P95_MS)


def group(link: http.client.HTTPConnection, cookie: str, run: int, *, rounds: int) -> None:
    from cohort.review.models import Group

    took, largest = [], 0
    for pk in Group.objects.filter(run=run).order_by("-pk").values_list("pk", flat=True)[:20]:
        ms, size = _measured(link, cookie, f"/p/ours/runs/{run}/groups/{pk}/?sample=2", rounds=rounds)
        took += ms
        largest = max(largest, size)
    print(f"{'':22} {'median, ms':>11} {'p95, ms':>8} {'KB':>6}")
    print(f"{'a group':22} {statistics.median(took):11.1f} {_p95(took):8.1f} {largest / 1000:6.0f}")
    _result("group_p95_ms", _p95(took), GROUP_P95_MS)
    _result("group_kb", largest / 1000, GROUP_KB)


def ingest(against: str, *, pairs: int, steps: int = 5, groups: int = 32) -> int:
    """Each round stores `steps` batches of one step, of `groups` groups."""
    with _tree(against) as other, _side(HERE.parent, steps, groups) as new, _side(other, steps, groups) as old:
        _round(new), _round(old)  # caches and prepared statements
        took = [(_round(new), _round(old)) for _ in range(pairs)]
    samples = steps * groups * 8
    print(f"{'':22} {'µs a sample, median':>20}")
    for name, mine in (("this tree", [pair[0] for pair in took]), (against, [pair[1] for pair in took])):
        print(f"{name:22} {1e6 * statistics.median(mine) / samples:20.1f}")
    _result("ingest_ratio", statistics.median(new / old for new, old in took), INGEST_RATIO, places=3)
    return 0


@contextmanager
def _tree(revision: str) -> Iterator[Path]:
    """The files of a commit in a folder of their own."""
    with TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision], cwd=HERE.parent, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


@contextmanager
def _side(tree: Path, steps: int, groups: int) -> "Iterator[subprocess.Popen[str]]":
    words = [sys.executable, str(HERE / "sides/ingest_samples.py"), str(tree), str(steps), str(groups)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            if process.poll() is not None:
                raise RuntimeError(f"the side of {tree} ended")
        yield process
        process.stdin.close()


def _round(side: "subprocess.Popen[str]") -> float:
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write("\n")
    side.stdin.flush()
    return float(side.stdout.readline())


def _measured(
    link: http.client.HTTPConnection, cookie: str, address: str, *, rounds: int, headers: dict[str, str] | None = None
) -> tuple[list[float], int]:
    """(ms of each request after the first two, which fill caches; bytes)."""
    took, size = [], 0
    for _ in range(rounds + 2):
        seconds, size = get(link, address, cookie, 200, headers)
        took.append(1000 * seconds)
    return took[2:], size


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _result(name: str, value: float, most: float, *, places: int = 1) -> None:
    print(f"RESULT {name} {value:.{places}f} {most} {'ok' if value < most else 'miss'}")


if __name__ == "__main__":
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    sys.exit(main())
