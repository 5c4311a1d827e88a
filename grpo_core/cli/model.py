"""`grpo doctor`, `grpo import-gguf` and `grpo export`: model folders looked at and made. Imports what is heavy only
when it runs."""

import argparse
from contextlib import closing
from pathlib import Path


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommands."""
    doctor = commands.add_parser(
        "doctor",
        help="look at a model folder for what would make a run go wrong",
        description="Ends with status 0 where nothing would; warnings and notes say what other programs do otherwise.",
    )
    doctor.add_argument("model", metavar="MODEL", help="model folder")
    doctor.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="of the run that is meant: YAML or JSON")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(handler=_doctor)

    gguf = commands.add_parser("import-gguf", help="make a model folder of a GGUF file")
    gguf.add_argument("file", type=Path, metavar="FILE", help="GGUF file of a causal language model")
    gguf.add_argument("--out", type=Path, required=True, metavar="DIR", help="model folder to make")
    gguf.set_defaults(handler=_import_gguf)

    export = commands.add_parser("export", help="make a model folder of a checkpoint that a run can resume from")
    export.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="such as RUN/checkpoints/step-000040")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="model folder to make")
    export.add_argument("--model", type=Path, metavar="DIR", help="where the base model lies, if not where it was")
    export.add_argument("--adapter", action="store_true", help="of LoRA: the adapters alone, for peft and vLLM")
    export.set_defaults(handler=_export)


def _doctor(options: argparse.Namespace) -> int:
    from grpo_core.config.run import ModelConfig, RunConfig
    from grpo_core.errors import ModelError
    from grpo_core.records.doctor import text_report
    from grpo_core.text import printable_lines

    config = RunConfig.from_file(options.config) if options.config is not None else None
    from grpo_core.model.doctor import diagnose
    from grpo_core.model.load import find_model

    diagnosis = diagnose(find_model(ModelConfig(path=options.model), base=Path.cwd()), config)
    print(
        diagnosis.model_dump_json(indent=2) if options.json else printable_lines(text_report(diagnosis)),
        end="\n" * options.json,
    )
    return ModelError.exit_status if diagnosis.failed else 0


def _import_gguf(options: argparse.Namespace) -> int:
    from grpo_core.model.import_gguf import import_gguf
    from grpo_core.runtime.progress import Progress

    with closing(Progress()) as progress:
        import_gguf(options.file.resolve(), options.out, log=progress.line)
        progress.line(f"weights: {options.out}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from grpo_core.text import format_bytes
    from grpo_core.trainer.checkpoints.export import export

    made = export(options.checkpoint, options.out, model=options.model, merged=not options.adapter)
    print(f"weights: {options.out} ({format_bytes(sum(entry.size for entry in made.files.values()))})")
    return 0
