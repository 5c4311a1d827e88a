"""The command `grpo`. Parses first and imports what is heavy after, so that help answers at once.

Errors that a person can act on are printed to stderr without a traceback, and the exit status gives their area
(grpo_core/errors.py).
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core import __version__
from grpo_core.cli.estimate import read_estimate
from grpo_core.cli.eval import positive
from grpo_core.errors import GrpoError, Interrupted
from grpo_core.runtime.signals import Stop
from grpo_core.text import printable_lines

if TYPE_CHECKING:
    from grpo_core.files.run_folder import RunDir
    from grpo_core.records.types import Outcome
    from grpo_core.runtime.progress import Progress


OPENMP_POLICY = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
"""PyTorch's threads sleep after spinning for about 20 µs, as long as waking takes. OpenMP's default spins for
milliseconds: alone on a machine that is a little faster, next to other work it doubles a small model's time
(docs/performance.md)."""


def set_openmp_policy(environment: MutableMapping[str, str]) -> None:
    """Before torch is loaded, which reads it; unless the environment has a policy already."""
    if not OPENMP_POLICY.keys() & environment.keys():
        environment.update(OPENMP_POLICY)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
    options.words = words
    set_openmp_policy(os.environ)
    try:
        status: int = options.handler(options)
    except GrpoError as error:
        rank = os.environ.get("RANK", "0")
        print(f"grpo: {'' if rank == '0' else f'rank {rank}: '}{printable_lines(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("grpo: interrupted", file=sys.stderr)
        return Interrupted.exit_status
    except OSError as error:
        from grpo_core.files.disk import disk_full, is_full

        if is_full(error):
            full = disk_full(Path.cwd(), str(error.filename or "what was to be written"))
            print(f"grpo: {full}", file=sys.stderr)
            return full.exit_status
        if not isinstance(error, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit stays quiet
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grpo", description="Train language models with GRPO.")
    parser.add_argument("--version", action="version", version=f"grpo {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    train = commands.add_parser("train", help="train as a config says and write a run directory")
    train.add_argument("config", type=Path, metavar="CONFIG", help="YAML or JSON file")
    train.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="run directory; must hold no run yet, but with --resume"
    )
    onward = train.add_mutually_exclusive_group()
    onward.add_argument("--resume", action="store_true", help="continue the run in DIR, from its newest checkpoint")
    onward.add_argument(
        "--resume-from",
        type=Path,
        action="append",
        default=[],
        metavar="CHECKPOINT",
        help="continue in a new DIR from this checkpoint; given again: older ones, for when it is not whole",
    )
    train.add_argument("--spool", action="store_true", help="also frame every record for shipping (used by workers)")
    train.add_argument(
        "--spool-cap", type=positive, metavar="BYTES", help="leave samples out of a spool that holds more than this"
    )
    train.add_argument(
        "--estimate", type=Path, metavar="FILE", help="what `grpo estimate` wrote; at the end the run says how it did"
    )
    train.set_defaults(handler=_train)

    names = ("best_of_n", "estimate", "eval", "lab", "model", "pipeline", "preview", "probe", "replay", "rescore")
    for name in (*names, "suite", "tasks"):
        import_module(f"grpo_core.cli.{name}").add(commands)
    cold = commands.add_parser("cold-start", help="make the demo's small base model")
    cold.add_argument("--out", type=Path, required=True, metavar="DIR", help="model folder to make")
    cold.add_argument("--steps", type=positive, default=None, help="supervised steps")
    cold.add_argument("--batch", type=positive, default=None, help="problems in a step")
    cold.add_argument("--layers", type=positive, default=None, help="of the network (default 3); fewer for a student")
    cold.add_argument("--seed", type=int, default=0, help="start of every random choice (default 0)")
    cold.add_argument("--threads", type=positive, default=None, help="CPU threads (default: all cores)")
    cold.add_argument("--force", action="store_true", help="build again whatever the folder holds")
    cold.set_defaults(handler=_cold_start)

    data = commands.add_parser("demo-data", help="write a demo's problems: additions")
    data.add_argument("--chat", action="store_true", help="those of the chat demo: conversations, numbers to 20")
    data.add_argument(
        "--worked", type=positive, metavar="N", help="also the first N training problems with worked answers"
    )
    data.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    data.add_argument("--seed", type=int, default=0, help="seed of the split (default 0)")
    data.set_defaults(handler=_demo_data)

    presets = commands.add_parser(
        "presets", help="list papers' settings, print one as YAML, or compare a config with it"
    )
    presets.add_argument("name", nargs="?", metavar="NAME")
    presets.add_argument("--against", type=Path, metavar="CONFIG", help="say how this config differs from the preset")
    presets.set_defaults(handler=_presets)
    return parser


def _train(options: argparse.Namespace) -> int:
    from grpo_core.config.kinds import config_from_file
    from grpo_core.config.preset_differences import differences_line
    from grpo_core.config.run import RunConfig
    from grpo_core.distributed import launch
    from grpo_core.errors import ConfigError
    from grpo_core.files.run_folder import RunDir
    from grpo_core.runtime.progress import Progress
    from grpo_core.trainer.checkpoints.resume import choose_from, choose_in

    if options.resume and options.spool:
        raise ConfigError("--spool starts a folder of its own; give --resume-from CHECKPOINT instead of --resume")
    # Under torchrun the first process alone writes. It makes the folder before the others wait for it.
    writes = os.environ.get("RANK", "0") == "0"

    def unbegun() -> RunDir | None:
        return RunDir.create(options.out, spool=True) if writes and options.spool else None

    with _refusals_kept(unbegun, steps=0):
        config = config_from_file(options.config)
        estimate = read_estimate(options.estimate) if options.estimate is not None else None
    planned = getattr(config, "steps", 0)
    run_dir = chosen = None
    with _refusals_kept(unbegun, steps=planned):
        if launch.needed(config.engine):
            also = [*options.resume_from, *([options.out] if options.resume else [])]
            return launch.launch(config, options.words, config_file=options.config, also=also)
        if writes and options.resume_from:
            chosen = choose_from(options.resume_from, config)
    if writes and options.resume:
        run_dir = RunDir.reopen(options.out)
        chosen = choose_in(run_dir, config)
    elif writes:
        run_dir = RunDir.create(options.out, spool=options.spool, spool_cap=options.spool_cap)
    if run_dir is not None and options.config.resolve() != run_dir.config_file.resolve():
        run_dir.write_config(config.to_yaml())
    if run_dir is not None and estimate is not None:
        run_dir.write_estimate(estimate.model_dump(mode="json"))
    # Under a worker, which requests the spool, stdout already goes to the log file.
    log = run_dir.log_file if run_dir is not None and not options.spool else None
    # A folder that is resumed is changed by the trainer, once every check has passed.
    now = run_dir.progress_file if run_dir is not None and not options.resume else None
    with Stop() as stop, closing(Progress(log=log, quiet=not writes, file=now)) as progress:
        progress.line(f"run {config.name}: {options.out}")
        if isinstance(config, RunConfig) and config.preset is not None:
            progress.line(differences_line(config))
        from grpo_core.distributed.ranks import Ranks
        from grpo_core.trainer.kinds import trainer_of

        with _refusals_kept(lambda: run_dir, steps=planned):
            ranks = Ranks.join(device=config.engine.device, check=stop.raise_if_requested)
        base = options.config.resolve().parent
        trainer = trainer_of(config)(
            config,
            run_dir,
            base=base,
            progress=progress,
            check=stop.raise_if_requested,
            ranks=ranks,
            resume=chosen,
            estimate=estimate,
        )
        try:
            outcome = trainer.run()
        except Interrupted:
            if writes:
                raise
            return 0  # not a failure, for which torchrun would end the first process while it still writes
        finally:
            ranks.leave()
        if run_dir is not None:
            _tell_end(outcome, run_dir, options.out, progress)
    return 0


@contextmanager
def _refusals_kept(where: "Callable[[], RunDir | None]", *, steps: int) -> Iterator[None]:
    """Records an error from before the trainer begins as the run's outcome, in the run directory that `where` returns:
    worker and platform learn an attempt's end from its records. Later errors are recorded by the trainer. `steps` were
    planned."""
    try:
        yield
    except GrpoError as error:
        if (run_dir := where()) is not None:
            run_dir.fail(error, steps=steps)
        raise


def _cold_start(options: argparse.Namespace) -> int:
    from grpo_core.runtime.progress import Progress
    from grpo_core.trainer.cold_start import Recipe, cold_start

    given = {"steps": options.steps, "batch": options.batch, "seed": options.seed, "layers": options.layers}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})

    with Stop() as stop, closing(Progress()) as progress:
        progress.begin("cold start, step", recipe.steps)

        def report(step: int, loss: float) -> None:
            stop.raise_if_requested()
            if step % 10 == 0 or step == recipe.steps:
                progress.advance(step, f"loss {loss:.3f} nats per token")

        if cold_start(
            options.out, recipe, threads=options.threads, force=options.force, log=progress.line, progress=report
        ):
            progress.line(f"wrote {options.out}")
    return 0


def _demo_data(options: argparse.Namespace) -> int:
    from grpo_core.data.arithmetic import chat_split, demo_split, worked_rows, write_jsonl
    from grpo_core.errors import ConfigError, DataError

    if options.chat and options.worked:
        raise ConfigError("--worked has no worked answers to the chat demo's conversations; leave --chat out")
    train, heldout = (chat_split if options.chat else demo_split)(options.seed)
    files: list[tuple[str, list[Any]]] = [("add-train.jsonl", train), ("add-heldout.jsonl", heldout)]
    if options.worked:
        files.append(("add-worked.jsonl", worked_rows(train[: options.worked])))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, rows in files:
            temporary = options.out / f"{name}.part"  # renamed once complete
            write_jsonl(temporary, rows)
            temporary.replace(options.out / name)
            print(
                f"{options.out / name}: {len(rows):,} {'problems' if rows is train or rows is heldout else 'answers'}"
            )
    except OSError as error:
        raise DataError(f"cannot write to {options.out}: {error.strerror}") from None
    return 0


def _presets(options: argparse.Namespace) -> int:
    from textwrap import fill

    import yaml

    from grpo_core.config.preset_differences import differences_line, from_defaults, written
    from grpo_core.config.presets import FAMILIES, PRESETS, preset_named
    from grpo_core.config.run import RunConfig
    from grpo_core.errors import ConfigError

    if options.name is None:
        if options.against is not None:
            raise ConfigError(
                "--against compares a config with a preset; name the preset: grpo presets NAME --against …"
            )
        width = max(map(len, PRESETS))
        for family, words in FAMILIES.items():
            print(words)
            for preset in PRESETS.values():
                if preset.family == family:
                    print(f"  {preset.name:{width}}  {preset.title} ({preset.paper})")
        return 0
    preset = preset_named(options.name)
    if options.against is not None:
        print(differences_line(RunConfig.from_file(options.against), preset.name))
        return 0
    notes = f"{preset.title}. {preset.citation}. {preset.notes}"
    print(fill(notes, 100, initial_indent="# ", subsequent_indent="# "))
    print(yaml.safe_dump(preset.settings, sort_keys=False, allow_unicode=True), end="")
    print("# differs from Cohort's defaults in:")
    for difference in from_defaults(preset):
        print(f"#   {difference.path} {written(difference.yours)} instead of {written(difference.paper)}")
    return 0


# ---------------------------------------------------------------------- around them


def _tell_end(outcome: "Outcome", run_dir: "RunDir", out: Path, progress: "Progress") -> None:
    from grpo_core.config.evaluation import HELDOUT
    from grpo_core.data.rejection import table
    from grpo_core.data.sampled_dataset import find_sampled
    from grpo_core.evaluate import preference_report
    from grpo_core.evaluate.text_report import measured_in, share
    from grpo_core.files.dataset import FOLDER
    from grpo_core.records.types import Event

    progress.line(outcome.message)
    if (sampled := find_sampled(out / FOLDER)) is not None:
        facts = sampled.facts
        for line in table(facts["counts"]):
            progress.line(line)
        problems = f"{facts['problems']:,} of {facts['problems_sampled']:,} problems"
        progress.line(f"dataset: {sampled.rows} ({facts['rows']:,} rows of {problems})")
    for phase in ("before", "after"):
        for measured in measured_in(out / "evals" / f"{phase}.jsonl"):
            name = "" if measured.result.suite == HELDOUT else f"{measured.result.suite}: "
            progress.line(f"{phase:6} {name}{share(measured)}")
    measured_facts = [
        event.data for event in run_dir.events() if isinstance(event, Event) and event.type == preference_report.FACTS
    ]
    if measured_facts:
        progress.line(preference_report.table(measured_facts[-1]))
    if outcome.final_checkpoint is not None:
        progress.line(f"weights: {out / outcome.final_checkpoint}")
    progress.line(f"records: {out}")


def run_process(command: Callable[[], int]) -> None:
    """Ends the process with the status that `command` returns.

    One of several ranks ends without interpreter shutdown: in it a rank was once seen to abort, as gloo's
    threads can when they free a tensor then (pytorch/pytorch#179291), and a run that had succeeded would have failed.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(command())
    status = 1
    try:
        status = command()
    finally:
        error = sys.exc_info()[1]
        if not isinstance(error, SystemExit):
            if error is not None:
                traceback.print_exception(error)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


if __name__ == "__main__":
    run_process(main)
