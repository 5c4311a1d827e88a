"""Review of a run with a million stored samples: its pages over HTTP, and what storing a sample costs. Prints one
table for each part, then a line per target.

    .venv/bin/python benchmarks/review_load.py --keep DIR [--part list … search] [--samples 1000000] [--rounds 20]
    .venv/bin/python benchmarks/review_load.py --part ingest --ingest-against REV [--pairs 30]

The web server runs as `cohort up` starts it, over an embedded database; one client with a kept connection asks. Other
runs have samples in the same tables. Filling takes long: with --keep the database lies in DIR, is filled once and read
again by later calls. CPU is what the web server and PostgreSQL used for one answer. Ingest is that of this tree and of
the commit REV, each with a database of its own, batch by batch in turn: what is compared is the median of both, and the
median of the pairs' ratios.
"""

import argparse
import http.client
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

from cohort_web import CohortWeb, free_port, signed_in  # noqa: E402
from embedded import database  # noqa: E402
from many_samples import NEEDLE, vocabulary  # noqa: E402
from review_data import Data, prepared  # noqa: E402
from runs_list import get  # noqa: E402

INGEST_RATIO = 1.05
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
    "a page far on": "sort=-tokens&after=300~5000",
}

FIRST, SECOND, THIRD = vocabulary()[:3]
SEARCHES = {
    "rare word": "rareword",
    "frequent word": FIRST,
    "two frequent words": f"{FIRST} {SECOND}",
    "three frequent words": f"{FIRST} {SECOND} {THIRD}",
    "frequent and rare": f"{FIRST} rareword",
    "two that never meet": "evenword oddword",
    "frequent without another": f"{FIRST} -{SECOND}",
    "frequent phrase": f'"{FIRST} {SECOND}"',
    "phrase never written": '"evenword oddword"',
    "phrase once": f'"{NEEDLE}"',
    "no hit": "nowhere",
    "a fifth of all": "evenword",
    "four of a hundred": vocabulary()[375],
    "one of a hundred": vocabulary()[1500],
}


@dataclass
class Client:
    link: http.client.HTTPConnection
    cookie: str
    data: Data
    rounds: int
    servers: tuple[int, ...]
    """First processes of the web server and of PostgreSQL."""
    spent: list[float] = field(default_factory=list)
    """ms of each request of the part so far."""
    largest: int = 0
    """Bytes."""

    def table(self, pages: Mapping[str, str], headers: dict[str, str] | None = None) -> None:
        """Ask for each address below the project; print a line for each."""
        for name, address in pages.items():
            took, size, used = [], 0, 0.0
            for number in range(self.rounds + 2):
                if number == 2:  # the first ones fill caches
                    used, took = _cpu_ms(self.servers), []
                seconds, size = get(self.link, f"/p/ours/{address}", self.cookie, 200, headers)
                took.append(1000 * seconds)
            used = (_cpu_ms(self.servers) - used) / self.rounds
            figures = f"{statistics.median(took):11.1f} {_p95(took):8.1f} {used:8.1f} {size / 1000:6.0f}"
            print(f"{name:40} {figures}", flush=True)
            self.spent += took
            self.largest = max(self.largest, size)

    def samples(self, queries: Mapping[str, str], view: str = "") -> dict[str, str]:
        return {name: f"runs/{self.data.run}/samples/{view}?{query}" for name, query in queries.items()}

    def result(self, name: str, most_ms: float) -> None:
        """Of what was measured since the last one."""
        _result(f"{name}_p95_ms", _p95(self.spent), most_ms)
        self.spent = []


def samples_list(client: Client) -> None:
    client.table(client.samples(PAGES))
    client.result("samples", 300)


def counts(client: Client) -> None:
    client.table(client.samples({name: f"{query}&facets=1" for name, query in PAGES.items()}), {"HX-Request": "true"})
    client.result("sample_counts", 300)


def group(client: Client) -> None:
    from cohort.review.models import Group

    run = client.data.run
    some = Group.objects.filter(run=run).order_by("-pk").values_list("pk", flat=True)[:5]
    client.table({f"group {pk}": f"runs/{run}/groups/{pk}/?sample=2" for pk in some})
    client.table({"groups of the newest step": f"runs/{run}/groups/"})
    close = f"runs/{client.data.close}/groups/{client.data.markdown}/"
    client.table({"16 long answers": close, "16 long answers, rendered": f"{close}?view=rendered"})
    client.result("group", 150)
    _result("group_kb", client.largest / 1000, 200)


def tokens(client: Client) -> None:
    close = f"runs/{client.data.close}/groups/{client.data.tokens}/samples/1/"
    queries = {"10,000 tokens": "", "the last of them": "?at=9999", "by ratio": "?signal=ratio&at=5000"}
    client.table({name: f"{close}{query}" for name, query in (queries | {"as a table": "?view=table"}).items()})
    client.result("tokens", 500)


def scatter(client: Client) -> None:
    names = ("all, highest |A|", "format only", "truncated", "reward and length", "ten steps", "not judged")
    queries = {name: PAGES[name] for name in names} | {"by a component": "colour=answer"}
    client.table(client.samples(queries, "scatter/"), {"HX-Request": "true"})
    client.result("scatter", 1000)


def problems(client: Client) -> None:
    client.table(
        {f"problems: {sort}": f"runs/{client.data.run}/problems/?sort={sort}" for sort in ("change", "-times")}
    )
    client.result("problems", 300)


def queue(client: Client) -> None:
    own = f"queues/{client.data.queue}/"
    client.table({"queue of 2,000": own, "queues": "queues/", "an item of it": f"{own}1950/"})
    client.result("queue", 300)


def rescore(client: Client) -> None:
    pk = client.data.rescore
    kinds = {what: f"rescore={pk}:{what}" for what in ("differs", "lower", "higher", "unscored")}
    some = {
        "differs, newest": f"{kinds['differs']}&sort=-step",
        "differs, truncated": f"{kinds['differs']}&finish=length",
    }
    client.table(client.samples(kinds | some | {"differs, ten steps": f"{kinds['differs']}&step_min=9&step_max=19"}))
    client.result("rescore", 300)


def search(client: Client) -> None:
    from urllib.parse import urlencode

    queries = {
        f"{name}, by {sort}": urlencode({"text": text, "sort": sort})
        for sort in ("step", "-advantage")
        for name, text in SEARCHES.items()
    }
    client.table(client.samples(queries))
    client.result("search", 500)


PARTS: dict[str, Callable[[Client], None]] = {
    "list": samples_list,
    "counts": counts,
    "group": group,
    "tokens": tokens,
    "scatter": scatter,
    "problems": problems,
    "queue": queue,
    "rescore": rescore,
    "search": search,
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--part", choices=(*PARTS, "ingest"), nargs="+", default=[*PARTS])
    options.add_argument("--keep", metavar="DIR", type=Path, help="where the database lies from call to call")
    options.add_argument("--samples", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=20, help="requests of each page")
    options.add_argument("--ingest-against", metavar="REV", help="of --part ingest: the commit to compare with")
    options.add_argument("--pairs", type=int, default=30, help="of --part ingest")
    chosen = options.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    parts = [part for part in chosen.part if part != "ingest"]
    if "ingest" in chosen.part and chosen.ingest_against is None:
        options.error("--part ingest needs --ingest-against REV")
    if parts:
        read(parts, samples=chosen.samples, rounds=chosen.rounds, keep=chosen.keep)
    if "ingest" in chosen.part:
        ingest(chosen.ingest_against, pairs=chosen.pairs)
    return 0


def read(parts: list[str], *, samples: int, rounds: int, keep: Path | None) -> None:
    with (
        database(keep=keep) as (folder, postgres),
        closing(CohortWeb(folder / "home", postgres.url, free_port())) as web,
    ):
        data = prepared(web, samples)
        web.start()
        assert postgres.process is not None
        cookie, servers = signed_in("rita")[0], (web.pid, postgres.process.pid)
        for part in parts:
            print(f"{part:40} {'median, ms':>11} {'p95, ms':>8} {'CPU, ms':>8} {'KB':>6}")
            with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=120)) as link:
                PARTS[part](Client(link, cookie, data, rounds, servers))


def ingest(against: str, *, pairs: int, steps: int = 5, groups: int = 32) -> None:
    """Each round stores `steps` batches of one step, of `groups` groups."""
    with _tree(against) as other, _side(HERE.parent, steps, groups) as new, _side(other, steps, groups) as old:
        _round(new), _round(old)  # caches and prepared statements
        took = [(_round(new), _round(old)) for _ in range(pairs)]
    samples = steps * groups * 8
    print(f"{'':22} {'µs a sample, median':>20}")
    for name, mine in (("this tree", [pair[0] for pair in took]), (against, [pair[1] for pair in took])):
        print(f"{name:22} {1e6 * statistics.median(mine) / samples:20.1f}")
    _result("ingest_ratio", statistics.median(new / old for new, old in took), INGEST_RATIO, places=3)


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
    # Celery's loader puts the folder it starts in before all others: it must be the tree's.
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree) as process:
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


def _cpu_ms(servers: tuple[int, ...]) -> float:
    """Of these processes and their children, those that ended too."""
    every = [process for pid in servers for root in [psutil.Process(pid)] for process in [root, *root.children(True)]]
    return 1000 * sum(sum(process.cpu_times()[:4]) for process in every)


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _result(name: str, value: float, most: float, *, places: int = 1) -> None:
    print(f"RESULT {name} {value:.{places}f} {most} {'ok' if value < most else 'miss'}")


if __name__ == "__main__":
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    sys.exit(main())
