"""`grpo best-of-n`: how far a learned reward can be optimised before a verifier disagrees. Imports what is heavy only
when it runs.

Exit status: 0 they do not part, 20 the verifier falls, 21 it stops rising, 22 the reward does not rise; below 20, and
75, as for every command (grpo_core/errors.py).
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.cli.eval import check_place, positive, write
from grpo_core.runtime.signals import Stop

if TYPE_CHECKING:
    from grpo_core.lab.best_of_n import BestOfN, MeanScore

STATUS = {"together": 0, "falls": 20, "stops": 21, "no_rise": 22}
_OPTIONS = {
    "problems": "problems",
    "samples": "group_size",
    "max_tokens": "max_completion_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
    "template": "template",
    "chat": "chat",
    "system": "system",
    "prefill": "prefill",
}
"""Option of the command → of the job."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `best-of-n`."""
    parser = commands.add_parser(
        "best-of-n",
        help="measure from which n on the best of n by a learned reward gets worse by a verifier",
        description="Sample N completions of each problem, let the reward choose the best of n, and score what it "
        "chooses by a verifier, for n = 1, 2, 4 … N.",
        epilog="Exit status: 0 they do not part, 20 the verifier falls, 21 it stops rising, 22 the reward does not "
        "rise.",
    )
    parser.add_argument(
        "reward", type=Path, metavar="REWARD", help="file of the reward that chooses, or a run's config"
    )
    parser.add_argument(
        "--verifier", type=Path, required=True, metavar="FILE", help="file of the reward that is taken for the truth"
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="folder of the model that answers, or a Hub id")
    parser.add_argument("--revision", metavar="COMMIT", help="with a Hub id")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="problems")
    parser.add_argument("--format", metavar="LAYOUT", help="layout of --data, as data.format names it (default auto)")
    parser.add_argument("--problems", type=int, metavar="N", help="how many are taken (default 32, at least 8)")
    parser.add_argument("--samples", type=int, metavar="N", help="completions of each, the largest n (default 64)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest completion (default 256)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of sampling (default 1)")
    parser.add_argument("--top-p", type=float, metavar="P", help="of sampling (default 1)")
    parser.add_argument("--seed", type=int, metavar="N", help="start of every random choice (default 0)")
    parser.add_argument("--template", metavar="TEXT", help="what the model is shown; {prompt} stands for the problem")
    parser.add_argument("--chat", choices=("auto", "template", "none"), help="the model's chat template (default auto)")
    parser.add_argument("--system", metavar="TEXT", help="system message of every conversation")
    parser.add_argument("--prefill", metavar="TEXT", help="text that begins every answer")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="text that ends an answer; given again: more")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default float32")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON, every score with it")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(handler=_best_of_n)


def _best_of_n(options: argparse.Namespace) -> int:
    from grpo_core.cli.probe import read_reward
    from grpo_core.config.messages import validated
    from grpo_core.distributed.environment import pick_device
    from grpo_core.lab.best_of_n import best_of_n
    from grpo_core.lab.job import BestOfNOptions, Job, options_of
    from grpo_core.runtime.progress import Progress
    from grpo_core.text import printable

    check_place(options.out, folder=False)
    given = {name: getattr(options, option) for option, name in _OPTIONS.items()}
    fields = {name: value for name, value in given.items() if value is not None}
    job = validated(
        Job,
        {
            "kind": "best_of_n",
            "reward": read_reward(options.reward)[0],
            "verifier": read_reward(options.verifier)[0],
            "options": fields,
            "data": {"path": str(options.data.resolve()), "format": options.format or "auto"},
            "model": {"path": _place(options.model), "revision": options.revision, "dtype": options.dtype},
            "threads": options.threads,
        },
        "these options do not go together",
    )
    chosen = options_of("best_of_n", fields)
    assert isinstance(chosen, BestOfNOptions)
    with Stop() as stop, closing(Progress(out=sys.stderr)) as progress:
        result = best_of_n(
            job,
            chosen,
            base=options.reward.resolve().parent,
            device=str(pick_device(options.device)),
            progress=progress,
            check=stop.raise_if_requested,
        )
    text = json.dumps(result.model_dump(mode="json"), ensure_ascii=False, indent=2)
    if options.out is not None:
        write(options.out, text + "\n")
    print(text if options.json else "\n".join(map(printable, lines(result))))
    return STATUS[result.parting.outcome]


def _place(model: str) -> str:
    """A folder's whole path, so that it is not looked for next to the reward; a Hub id as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def lines(result: "BestOfN") -> Iterator[str]:
    """The result for a terminal, a line at a time."""
    from grpo_core.lab.best_of_n import parting_text

    yield (
        f"best of n by reward {result.rubric_digest[:12]}, scored by verifier {result.verifier_digest[:12]}: "
        f"{len(result.scores):,} problems of {result.samples:,} completions by {result.model}"
    )
    yield ""
    yield f"{'n':>6}  {'KL, nats':>8}   {'reward':>10}  {'95 % interval':22}   {'verifier':>10}  95 % interval"
    for point in result.points:
        reward, verifier = _mean(point.reward), _mean(point.verifier)
        yield f"{point.n:>6}  {point.kl:>8.2f}   {reward}   {verifier}".rstrip()
    yield ""
    yield parting_text(result)
    if result.length is not None:
        ranks = result.length
        yield (
            f"length and reward: Spearman's ρ {ranks.rho:+.2f} [{ranks.low:+.2f}, {ranks.high:+.2f}] within problems, "
            f"mean of {ranks.problems:,}"
        )
    if left_out := _left_out(result):
        yield left_out
        yield from (f"  {why}" for why in result.unscored_why)


def _mean(score: "MeanScore") -> str:
    return f"{score.mean:>10.4g}  {f'[{score.low:.4g}, {score.high:.4g}]':22}"


def _left_out(result: "BestOfN") -> str:
    parts = [
        (result.unscored, "completions without a reward or a verifier's score"),
        (result.problems_unscored, "problems of which half or more had none"),
        (result.problems_too_long, "problems too long for the model"),
    ]
    counted = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"left out: {counted}" if counted else ""
