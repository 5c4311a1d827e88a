"""Mutation testing: small faults put into product code by Cosmic Ray, and the share of them that the tests notice.

The sample depends on the product's source and the seed alone: a line is drawn by the hash of its text, so that the same
mutants come back after the tests changed, and a change of one line moves no other. The tests run in a clone of the last
commit: the checkout is never written to. tests/mutate.yaml is the table of sources and tests.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
import yaml
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.testing import run_tests
from cosmic_ray.util import restore_contents
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).resolve().parent.parent
SEED = 20261125
MEMORY = 8 << 30  # bytes of a test process: a mutant may fill a list for ever
# Of arithmetic only the neighbour: + to >> fails wherever the line runs. `is` for == is often the same.
SKIPPED_OPERATORS = re.compile(
    r"core/ReplaceBinaryOperator_(?!(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|Pow_Mul|BitAnd_BitOr"
    r"|BitOr_BitAnd|LShift_RShift|RShift_LShift)$)|core/ReplaceComparisonOperator_(?!Is_IsNot|IsNot_Is)(Is|.*_Is)"
)
SKIPPED_LINES = re.compile(r"TYPE_CHECKING|@(lru_)?cache\b|\bmaxsize=|@dataclass|__name__ ==")


def matching(tree: Path, globs: list[str]) -> list[str]:
    """Paths below the tree, each once, in the globs' order."""
    without = [glob[1:] for glob in globs if glob[0] == "!"]
    paths = [str(path.relative_to(tree)) for glob in globs if glob[0] != "!" for path in sorted(tree.glob(glob))]
    return list(dict.fromkeys(path for path in paths if not any(fnmatch(path, glob) for glob in without)))


def command(tree: Path, group: dict[str, Any], source: str) -> str:
    """pytest on the group's tests, those first that most likely notice a fault in this source."""
    first = [glob for pattern, glob in group.get("first", {}).items() if fnmatch(source, pattern)]
    first.append(f"*/test_*{Path(source).stem}*")
    paths = sorted(matching(tree, group["tests"]), key=lambda path: [not fnmatch(path, glob) for glob in first])
    pytest = shlex.join([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths])
    return shlex.join(["sh", "-c", f"exec {pytest} 2>&1"])


def annotations(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    nodes = [getattr(node, key, None) for node in ast.walk(ast.parse(text)) for key in ("annotation", "returns")]
    return [((at.lineno, at.col_offset), (at.end_lineno or 0, at.end_col_offset or 0)) for at in nodes if at]


def changed_line(text: str, spec: MutationSpec) -> str | None:
    """The first line of the mutant that is another; nothing if it does not parse or means the same."""
    mutated = mutate_code(text, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)
    with contextlib.suppress(SyntaxError):
        if mutated is not None and ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text)):
            pairs = zip(text.split("\n"), mutated.split("\n"), strict=False)
            return next(after.strip() for before, after in pairs if after != before)
    return None


def digest(*words: object) -> str:
    return hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()[:16]


def candidates(tree: Path, source: str) -> Iterator[tuple[str, str, MutationSpec]]:
    """All mutants of a file, each with the keys of its line and its own, which do not depend on other lines."""
    rows = (tree / source).read_text(encoding="utf-8").split("\n")
    spans, count = annotations("\n".join(rows)), Counter[object]()
    with contextlib.chdir(tree), use_db(":memory:", WorkDB.Mode.create) as database:
        init([Path(source)], database, {})
        specs = [spec for item in database.work_items for spec in item.mutations]
    for spec in sorted(specs, key=lambda spec: (spec.start_pos, spec.operator_name, spec.occurrence)):
        row, earlier = rows[spec.start_pos[0] - 1], rows[: spec.start_pos[0] - 1]
        marker = "Binary" in spec.operator_name and row[spec.end_pos[1] :].lstrip()[:1] in (",", ")")  # f(*, name)
        skipped = SKIPPED_OPERATORS.match(spec.operator_name) or SKIPPED_LINES.search(row) or marker
        if not skipped and not any(start <= spec.start_pos < end for start, end in spans):
            line = digest(SEED, source, row.strip(), [other.strip() for other in earlier].count(row.strip()))
            count[line, spec.operator_name] += 1
            yield line, digest(line, spec.operator_name, count[line, spec.operator_name]), spec


def sample(tree: Path, name: str, group: dict[str, Any]) -> Iterator[tuple[dict[str, Any], MutationSpec]]:
    """One mutant each of the lines drawn; any line that can be mutated is as likely as another."""
    drawn = set[str]()
    rows = [row for source in matching(tree, group["sources"]) for row in candidates(tree, source)]
    for line, key, spec in sorted(rows, key=lambda row: row[:2]):
        text = (tree / spec.module_path).read_text(encoding="utf-8")
        if line not in drawn and len(drawn) < group["mutants"] and (after := changed_line(text, spec)):
            drawn.add(line)
            mutant = {"id": key, "group": name, "file": str(spec.module_path), "line": spec.start_pos[0]}
            before = text.split("\n")[spec.start_pos[0] - 1].strip()
            yield {**mutant, "operator": spec.operator_name[5:], "before": before, "after": after}, spec


@contextlib.contextmanager
def clone(tree: Path) -> Iterator[tuple[Path, str]]:
    """A clone of the tree's last commit, current folder and first in the path of what is started meanwhile."""
    commit = subprocess.check_output(["git", "-C", tree, "rev-parse", "HEAD"], text=True).strip()
    if subprocess.check_output(["git", "-C", tree, "status", "--porcelain"]):
        print(f"Only what is committed in {tree} is tested; it has changes that are not.", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        os.chmod(folder, 0o755)  # PostgreSQL may run as another user
        copy = Path(folder) / "tree"
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", tree, copy], check=True)
        subprocess.run(["git", "-C", copy, "checkout", "--quiet", "--detach", commit], check=True)
        hashed = ["compileall", "-q", "--invalidation-mode", "checked-hash", "grpo_core", "platform", "worker"]
        subprocess.run([sys.executable, "-m", *hashed], cwd=copy, check=True)
        os.environ.update(PYTHONPATH=f"{copy}:{copy}/platform", OMP_NUM_THREADS="1", TMPDIR=folder)
        try:
            with contextlib.chdir(copy):
                yield copy, commit
        finally:  # Ctrl-C does not reach the tests: they have a session of their own
            for process in psutil.Process().children(recursive=True):
                process.kill()


def trouble(tree: Path, group: dict[str, Any], source: str) -> str:
    """Why the result would mean nothing, if so: the tests fail without a mutant, or pass with a broken source."""
    if empty := [glob for glob in group["tests"] if glob[0] != "!" and not matching(tree, [glob])]:
        print(f"  no test file matches {', '.join(empty)}")
    outcome, output = run_tests(command(tree, group, source), 3600)
    if outcome != TestOutcome.SURVIVED:
        return f"  the tests fail without a mutant:\n{output[-3000:]}"
    with restore_contents(tree / source) as contents:
        (tree / source).write_bytes(contents + b"\nraise RuntimeError(__file__)\n")
        outcome, output = run_tests(command(tree, group, source), 3600)
    if outcome != TestOutcome.KILLED or f"RuntimeError: {tree / source}" not in output:
        return f"  the tests do not import {source} from the clone:\n{output[-3000:]}"
    return ""


def run(
    tree: Path, group: dict[str, Any], drawn: list[tuple[dict[str, Any], MutationSpec]], timeout: float
) -> Iterator[dict[str, Any]]:
    for mutant, spec in drawn:
        started = time.monotonic()
        result = mutate_and_test([spec], command(tree, group, mutant["file"]), timeout)
        if result.test_outcome not in (TestOutcome.KILLED, TestOutcome.SURVIVED):
            raise RuntimeError(f"{described(mutant)}\n{result.output}")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)|^timeout$", result.output or "", re.MULTILINE)
        noticed_by = (failed[1] or "timeout") if failed else ""
        seconds = round(time.monotonic() - started, 1)
        yield {**mutant, "outcome": result.test_outcome.value, "noticed_by": noticed_by, "seconds": seconds}


def described(mutant: dict[str, Any]) -> str:
    where = f"{mutant['file']}:{mutant['line']} {mutant['operator']} [{mutant['id']}] {mutant.get('noticed_by', '')}"
    return f"{mutant.get('outcome', 'drawn')}: {where}\n    - {mutant['before']}\n    + {mutant['after']}"


def summary(mutants: list[dict[str, Any]]) -> str:
    rows = [f"{'group':<12} {'mutants':>8} {'killed':>8} {'survived':>9} {'share':>7}"]
    for name in [*dict.fromkeys(mutant["group"] for mutant in mutants), "all"]:
        count = Counter(mutant["outcome"] for mutant in mutants if name in (mutant["group"], "all"))
        share = f"{count['killed'] / max(count.total(), 1):.0%}"
        rows.append(f"{name:<12} {count.total():>8} {count['killed']:>8} {count['survived']:>9} {share:>7}")
    return "\n".join(rows)


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> int:
    """Shows both results of the mutants that are in both, and what is noticed no more; how many these are."""
    old, new = ({mutant["id"]: mutant for mutant in mutants} for mutants in (before, after))
    common = [key for key in old if key in new]
    lost = [new[key] for key in common if old[key]["outcome"] == "killed" != new[key]["outcome"]]
    print(f"\nIn both: {len(common)} mutants, of {len(old)} before and {len(new)} now. The others' source changed.")
    print("\nbefore:", summary([old[key] for key in common]), "\nnow:", summary([new[key] for key in common]), sep="\n")
    print(f"\nnoticed before and not now: {len(lost)}", *map(described, lost), sep="\n")
    return len(lost)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("groups", nargs="*", help="of tests/mutate.yaml; all if none is named")
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout to test the last commit of")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "mutate.json", help="where the results go")
    parser.add_argument("--compare", type=Path, help="earlier results; 1 is returned if a mutant is noticed no more")
    parser.add_argument("--list", action="store_true", help="show the sample and run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    table = yaml.safe_load((ROOT / "tests" / "mutate.yaml").read_text(encoding="utf-8"))
    results, earlier = (
        options.json.resolve(),
        json.loads(options.compare.read_text()) if options.compare else {"mutants": []},
    )
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    done: list[dict[str, Any]] = []
    broken = 0
    with clone(options.tree.resolve()) as (tree, commit):
        for name in options.groups or table:
            drawn, started = list(sample(tree, name, table[name])), time.monotonic()
            print(f"{name}: {len(drawn)} mutants in {len({mutant['file'] for mutant, _ in drawn})} files", flush=True)
            if options.list:
                print(*(described(mutant) for mutant, _ in drawn), sep="\n")
            elif problem := trouble(tree, table[name], drawn[0][0]["file"]):
                broken += 1
                print(problem, flush=True)
            else:
                timeout = 60 + 5 * (time.monotonic() - started)
                print(f"  sound; a mutant may take {timeout:.0f} s", flush=True)
                for mutant in run(tree, table[name], drawn, timeout):
                    done.append(mutant)
                    print(f"  {mutant['seconds']} s {described(mutant)}", flush=True)
                    results.parent.mkdir(exist_ok=True)
                    results.write_text(json.dumps({"seed": SEED, "commit": commit, "mutants": done}, indent=1) + "\n")
    if done:
        print("", summary(done), *(described(mutant) for mutant in done if mutant["outcome"] != "killed"), sep="\n")
    before = [mutant for mutant in earlier.get("mutants", []) if mutant["group"] in (options.groups or table)]
    lost = compare(before, done) if options.compare else 0
    return 1 if broken or lost else 0


if __name__ == "__main__":
    sys.exit(main())
