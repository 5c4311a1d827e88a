"""`grpo pipeline`: several runs as one graph, in which a stage begins from what earlier stages gave."""

import argparse
from pathlib import Path


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `pipeline`."""
    pipeline = commands.add_parser("pipeline", help="run several stages, each from what earlier ones gave")
    actions = pipeline.add_subparsers(metavar="ACTION", required=True)

    check = actions.add_parser("check", help="check a pipeline's graph and every stage's fields, and show the order")
    check.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON file")
    check.set_defaults(handler=_check)

    run = actions.add_parser("run", help="run what is not done; interrupted stages are resumed")
    run.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON file")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder with a folder for each stage")
    which = run.add_mutually_exclusive_group()
    which.add_argument("--from", dest="again", metavar="STAGE", help="run this stage and all below it again")
    which.add_argument("--only", metavar="STAGE", help="run no other stage; this one again if it is out of date")
    run.set_defaults(handler=_run)

    status = actions.add_parser("status", help="where each stage of a pipeline's folder is")
    status.add_argument("folder", type=Path, metavar="DIR", help="as it was given to --out")
    status.set_defaults(handler=_status)

    presets = actions.add_parser("presets", help="list the papers' pipelines, or print one as YAML")
    presets.add_argument("name", nargs="?", metavar="NAME")
    presets.set_defaults(handler=_presets)


def _check(options: argparse.Namespace) -> int:
    from grpo_core.pipeline.config import PipelineConfig
    from grpo_core.pipeline.stages import check_stages

    pipeline = PipelineConfig.from_file(options.file)
    configs = check_stages(pipeline)
    width = max(map(len, pipeline.order))
    for slug in pipeline.order:
        inputs = f"  from {', '.join(pipeline.inputs[slug])}" if pipeline.inputs[slug] else ""
        print(f"{slug:{width}}  {configs[slug].kind}{inputs}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from grpo_core.pipeline.config import PipelineConfig
    from grpo_core.pipeline.folder import PipelineFolder
    from grpo_core.pipeline.report import pipeline_table
    from grpo_core.pipeline.runner import PipelineRunner
    from grpo_core.runtime.signals import Stop
    from grpo_core.text import printable_lines

    pipeline = PipelineConfig.from_file(options.file)
    folder = PipelineFolder(options.out.resolve())

    def line(text: str) -> None:
        print(printable_lines(text), flush=True)

    with Stop() as stop:
        runner = PipelineRunner(pipeline, folder, options.file.resolve().parent, stop, line)
        try:
            runner.run(again_from=options.again, only=options.only)
        finally:
            if folder.config_file.is_file():
                line("\n".join(["", *pipeline_table(folder.config(), folder)]))
    return 0


def _status(options: argparse.Namespace) -> int:
    from grpo_core.pipeline.folder import PipelineFolder
    from grpo_core.pipeline.report import pipeline_table
    from grpo_core.text import printable_lines

    folder = PipelineFolder(options.folder.resolve())
    pipeline = folder.config()
    print(f"pipeline {printable_lines(pipeline.name)}: {folder.path}")
    print("\n".join(pipeline_table(pipeline, folder)))
    return 0


def _presets(options: argparse.Namespace) -> int:
    from grpo_core.pipeline.presets import pipeline_preset, pipeline_presets

    if options.name is not None:
        print(pipeline_preset(options.name).text, end="")
        return 0
    presets = pipeline_presets()
    width = max(len(preset.name) for preset in presets)
    for preset in presets:
        print(f"{preset.name:{width}}  {preset.title}")
    return 0
