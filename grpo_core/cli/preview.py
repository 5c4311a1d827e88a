"""`grpo preview`: shows what the policy will see, token by token, before a run. Imports what is heavy only when it
runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.cli.eval import positive
from grpo_core.text import format_percent, printable_lines

if TYPE_CHECKING:
    from grpo_core.lab.preview import Preview, PreviewRow

_BAR = 40


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `preview`."""
    parser = commands.add_parser(
        "preview",
        help="show the exact tokens that the policy will see",
        description="Show prompts as the policy will see them, lengths of all prompts, and what ends a completion. "
        "Special tokens stand in ⟦ ⟧, and ▸ is where the answer begins.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML or JSON file")
    parser.add_argument("--rows", type=positive, default=3, metavar="N", help="problems to show (default 3)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(handler=_preview)


def _preview(options: argparse.Namespace) -> int:
    from grpo_core.config.run import RunConfig
    from grpo_core.lab.preview import preview

    config = RunConfig.from_file(options.config)
    shown = preview(config, base=options.config.resolve().parent, rows=options.rows)
    print(shown.model_dump_json(indent=2) if options.json else printable_lines(text_of(shown)))
    return 0


def text_of(shown: "Preview") -> str:
    """For a terminal."""
    chat = shown.chat
    template = f"chat template of {chat['source']} ({chat['sha256'][:12]})" if chat["sha256"] else "no chat template"
    ends = [f"{end.text!r} ({end.id}, named by {', '.join(end.named_by)})" for end in shown.ends]
    lines = [
        f"{shown.model}: {template}",
        f"a completion ends with {'; '.join([*ends, *map(repr, shown.stop)]) or 'nothing: no end token is named'}",
        *(f"note: {note}" for note in shown.notes),
    ]
    for row in shown.rows:
        lines += ["", *_row(row)]
    share = format_percent(shown.over_limit / shown.problems)
    over = f"{shown.over_limit:,} ({share}) over data.max_prompt_tokens {shown.limit:,}"
    lines += [
        "",
        f"{shown.problems:,} prompts of {shown.shortest:,} to {shown.longest:,} tokens, mean {shown.mean:.1f}; {over}",
    ]
    most = max(shown.lengths.counts)
    for edge, count in zip(shown.lengths.edges[1:], shown.lengths.counts, strict=True):
        lines += [f"  up to {edge:7,.0f}  {count:7,}  {'█' * -(-_BAR * count // most)}"] if count else []
    for part in shown.evaluated:
        longest = f"the longest {part.longest:,} tokens ({part.longest_id})"
        lines += [f"{part.name}: {part.prompts:,} prompts, {longest}, {part.over_limit:,} over {shown.limit:,}"]
    lines += [f"a run will not start: {reason}" for reason in shown.refused]
    return "\n".join(lines)


def _row(row: "PreviewRow") -> list[str]:
    starts = row.ids_before_answer
    ids = [str(token.id) for token in row.tokens]
    more = [f"… ({row.left_out:,} more tokens)"] if row.left_out else []
    ids[starts:starts] = [*more, "▸"]
    return [
        f"problem {row.problem_id}: {len(row.tokens) + row.left_out:,} tokens",
        row.marked,
        f"ids: {' '.join(ids)}",
        f"rewards see: question {row.question!r}, answers {', '.join(map(repr, row.answers))}, prefill {row.prefill!r}",
    ]
