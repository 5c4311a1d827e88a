"""`grpo eval`: measures a model, on a config's held-out problems and suites, or alone on suites. Imports what is heavy
only when it runs."""

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.errors import ConfigError, GrpoError
from grpo_core.runtime.signals import Stop

if TYPE_CHECKING:
    from grpo_core.evaluate.task import Manner, Task
    from grpo_core.model.load import LoadedModel
    from grpo_core.records.types import Phase
    from grpo_core.trainer.evaluation import Evaluation

_OF_A_MODEL = (
    *("template", "chat", "system", "prefill", "stop"),
    *("max_tokens", "max_prompt_tokens", "temperature", "samples", "seed", "device", "dtype"),
)
"""Options that the config sets where there is one."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `eval`."""
    parser = commands.add_parser(
        "eval",
        help="measure a model on held-out problems and suites",
        description="Measure a model: as a config says, on its held-out problems and suites; or alone, on suites.",
    )
    parser.add_argument("what", type=Path, metavar="CONFIG|MODEL", help="config file, or a model's folder")
    parser.add_argument("--model", type=Path, metavar="DIR", help="model folder to measure instead of the config's")
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="SUITE",
        help="builtin:NAME, or a file of items; given again: more. With a config: besides its own",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PLACE",
        help="write every answer and the results: with a config to this file, with a model into this folder",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    alone = parser.add_argument_group("for a model alone")
    alone.add_argument("--template", metavar="TEXT", help="what the model is shown; {prompt} stands for the item")
    alone.add_argument("--chat", choices=("auto", "template", "none"), help="the model's chat template (default auto)")
    alone.add_argument("--system", metavar="TEXT", help="system message of every conversation")
    alone.add_argument("--prefill", metavar="TEXT", help="text that begins every answer")
    alone.add_argument("--stop", action="append", metavar="TEXT", help="text that ends an answer; given again: more")
    alone.add_argument("--max-tokens", type=positive, metavar="N", help="longest completion (default 256)")
    alone.add_argument("--max-prompt-tokens", type=positive, metavar="N", help="longest prompt (default 4096)")
    alone.add_argument("--temperature", type=_not_negative, metavar="T", help="0 (the default): the likeliest token")
    alone.add_argument("--samples", type=positive, metavar="N", help="completions per item (default 1)")
    alone.add_argument("--seed", type=int, metavar="N", help="start of every random choice (default 0)")
    alone.add_argument("--device", choices=("auto", "cpu", "cuda"), help="default auto")
    alone.add_argument("--dtype", choices=("float32", "bfloat16"), help="default float32")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first so many items of each --suite")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: the config's, else all)")
    parser.set_defaults(handler=_eval)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _eval(options: argparse.Namespace) -> int:
    folder = options.what.is_dir()
    check_place(options.out, folder=folder)
    if folder:
        return _model_alone(options)
    if given := [name for name in _OF_A_MODEL if getattr(options, name) is not None]:
        raise ConfigError(f"--{given[0].replace('_', '-')} is for a model alone; here the config says it")
    return _with_config(options)


def _with_config(options: argparse.Namespace) -> int:
    from grpo_core.config.run import RunConfig

    config = RunConfig.from_file(options.what)
    if options.suite:
        fields = config.to_dict()
        fields["eval"]["suites"] += [suite.model_dump(mode="json") for suite in _suites(options)]
        config = RunConfig.from_whole(fields, source="the config with --suite")
    if options.model is not None:
        model = config.model.model_copy(update={"path": str(options.model.resolve()), "revision": None})
        config = config.model_copy(update={"model": model})
    _use_threads(options.threads or config.engine.threads)

    from grpo_core.evaluate.task import manner_of
    from grpo_core.trainer.inputs import load_inputs

    inputs = load_inputs(config, base=options.what.resolve().parent, learning=False)
    with ExitStack() as opened:
        for runner in inputs.runners:
            opened.enter_context(runner)
        if not inputs.tasks:
            raise ConfigError("nothing to evaluate on: give eval.path, eval.holdout or eval.suites, or --suite")
        evaluations = _answered(
            options,
            "before" if options.model is None else "after",
            inputs.tasks,
            policy=inputs.policy,
            manner=manner_of(config),
            rows=config.engine.rollout_batch,
        )
    if options.out is not None:
        write(options.out, "".join(_lines(evaluations)))
    return 0


def _model_alone(options: argparse.Namespace) -> int:
    if options.model is not None:
        raise ConfigError("--model goes with a config; give the model's folder alone, or the config's file")
    if not options.suite:
        raise ConfigError("a model alone is measured on suites: give --suite builtin:NAME or --suite FILE")
    _use_threads(options.threads)

    from grpo_core.config.messages import validated
    from grpo_core.config.prompt import PromptConfig
    from grpo_core.config.run import EngineConfig, ModelConfig
    from grpo_core.distributed.environment import pick_device
    from grpo_core.evaluate.suites.load import load_suites
    from grpo_core.evaluate.task import Manner
    from grpo_core.model.load import find_model, load_model
    from grpo_core.trainer.inputs import suite_tasks

    given = {name: getattr(options, name) for name in ("template", "chat", "system", "prefill")}
    prompts = {name: value for name, value in given.items() if value is not None}
    manner = Manner(
        prompts=validated(PromptConfig, prompts, "these options do not go together"),
        stop=tuple(options.stop or ()),
        max_prompt_tokens=options.max_prompt_tokens or 4096,
        max_completion_tokens=options.max_tokens or 256,
        temperature=options.temperature or 0.0,
        samples=options.samples or 1,
        seed=options.seed or 0,
    )
    if manner.seed < 0:
        raise ConfigError("--seed must be 0 or more")
    suites = load_suites(_suites(options), base=Path.cwd())
    names = [suite.config.name for suite in suites]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"suite names must be unique; given twice: {', '.join(sorted(twice))}")
    source = find_model(ModelConfig(path=str(options.what.resolve())), base=Path.cwd())
    policy = load_model(source, dtype=options.dtype or "float32", device=pick_device(options.device or "auto"))
    evaluations = _answered(
        options,
        "before",
        suite_tasks(suites, policy, manner),
        policy=policy,
        manner=manner,
        rows=EngineConfig().rollout_batch,
    )
    if options.out is not None:
        write(options.out / "answers.jsonl", "".join(_lines(evaluations)))
        write(options.out / "results.json", _as_json(evaluations, policy) + "\n")
    return 0


def _answered(
    options: argparse.Namespace,
    phase: "Phase",
    tasks: "Sequence[Task]",
    *,
    policy: "LoadedModel",
    manner: "Manner",
    rows: int,
) -> "list[Evaluation]":
    """Answer all, and print the results."""
    import sys

    from grpo_core.evaluate.text_report import Measured, share, table
    from grpo_core.rollout.local import LocalRollout
    from grpo_core.runtime.progress import Progress
    from grpo_core.trainer.evaluation import evaluate_all

    # With --json, stdout is for it alone.
    shown = sys.stderr if options.json else sys.stdout
    with Stop() as stop, closing(Progress(out=shown)) as progress:
        progress.begin("evaluating", sum(len(task.prompts.prompts) for task in tasks))
        check = stop.raise_if_requested
        rollout = LocalRollout(policy, max_rows=rows, check=check, log=progress.line)
        evaluations = list(
            evaluate_all(
                phase, tasks, rollout=rollout, policy=policy, manner=manner, progress=progress.advance, check=check
            )
        )
    results = [Measured(evaluation.result, evaluation.items) for evaluation in evaluations]
    if options.json:
        print(_as_json(evaluations, policy))
    elif not options.suite and len(results) == 1:
        print(f"accuracy: {share(results[0])}")
    else:
        print(table(results))
    return evaluations


def _suites(options: argparse.Namespace) -> list[Any]:
    """Those named by --suite."""
    from grpo_core.evaluate.suites.load import suite_at

    suites = [suite_at(location) for location in options.suite]
    return suites if options.limit is None else [suite.model_copy(update={"limit": options.limit}) for suite in suites]


def _as_json(evaluations: "Sequence[Evaluation]", policy: "LoadedModel") -> str:
    from grpo_core.evaluate.text_report import Measured, as_dict
    from grpo_core.model.source import model_inputs

    content = {
        "model": {"path": policy.source.given, "sha256": model_inputs(policy.source)},
        "results": [as_dict(Measured(evaluation.result, evaluation.items)) for evaluation in evaluations],
    }
    return json.dumps(content, ensure_ascii=False, indent=2)


def _lines(evaluations: "Sequence[Evaluation]") -> list[str]:
    return [
        record.model_dump_json() + "\n"
        for evaluation in evaluations
        for record in (*evaluation.items, evaluation.result)
    ]


def _use_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def check_place(out: Path | None, *, folder: bool) -> None:
    """Before the work, not after it."""
    if out is None:
        return
    if folder:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write into {out}: {error.strerror}") from None
        if not os.access(out, os.W_OK):
            raise ConfigError(f"cannot write into {out}: it is not writable")
    elif not (out.parent.is_dir() and os.access(out.parent, os.W_OK)):
        raise ConfigError(f"cannot write {out}: its folder does not exist or is not writable")


def write(path: Path, text: str, *, error_class: type[GrpoError] = ConfigError) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise error_class(f"cannot write {path}: {error.strerror}") from None
