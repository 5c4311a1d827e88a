"""`grpo import-gguf` and `grpo export`: model folders made of other files. Imports what is heavy only when it runs."""

import argparse
from contextlib import closing
from pathlib import Path


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommands."""
    gguf = commands.add_parser("import-gguf", help="make a model folder of a GGUF file")
    gguf.add_argument("file", type=Path, metavar="FILE", help="GGUF file of a causal language model")
    gguf.add_argument("--out", type=Path, required=True, metavar="DIR", help="model folder to make")
    gguf.set_defaults(handler=_import_gguf)

    export = commands.add_parser("export", help="make a model folder of a checkpoint that a run can resume from")
    export.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="such as RUN/checkpoints/step-000040")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="model folder to make")
    export.add_argument("--model", type=Path, metavar="DIR", help="where the base model lies, if not where it was")
    export.set_defaults(handler=_export)


def _import_gguf(options: argparse.Namespace) -> int:
    from grpo_core.model.import_gguf import import_gguf
    from grpo_core.runtime.progress import Progress

    with closing(Progress()) as progress:
        import_gguf(options.file.resolve(), options.out, log=progress.line)
        progress.line(f"weights: {options.out}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from grpo_core.trainer.checkpoints.export import export

    export(options.checkpoint, options.out, model=options.model)
    print(f"weights: {options.out}")
    return 0
