"""Looks at a model folder for what would make a run go wrong, or another program sample otherwise than it was trained.

One table of checks, `_CHECKS`: `grpo doctor` runs all of them, and a run records what they warn of when it starts.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn

from grpo_core.config.kinds import AnsweringConfig
from grpo_core.config.reward import RewardComponent, reward_kinds
from grpo_core.config.run import LoraConfig, RunConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.data.chat import ChatTemplate, template_of
from grpo_core.data.problem import Message
from grpo_core.errors import DataError, ModelError
from grpo_core.files.weights import read_json_object
from grpo_core.model.head import not_plain
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel, ModelSource, end_ids, load_model
from grpo_core.model.lora import ATTENTION_NAMES, adapter_layers, chosen_layers
from grpo_core.records.doctor import Diagnosis, Finding

GENERATION = "generation_config.json"
_OBEYED = (
    *("do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "forced_eos_token_id"),
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_beams", "penalty_alpha"),
)
"""Of a generation_config: what transformers' generate and vLLM apply where a caller gives nothing."""
_ASKED = "cohortuser"
"""Stands for a prompt, behind which is what the template begins an answer with."""
_TAG = re.compile(r"<([A-Za-z]\w*)>")

Check = Callable[[LoadedModel, AnsweringConfig | None], Iterator[Finding]]


def diagnose(source: ModelSource, config: AnsweringConfig | None) -> Diagnosis:
    """All that the checks report. `config`: the run that is meant, for what depends on it."""
    try:
        loaded = load_model(source, dtype="float32", device=torch.device("cpu"))
    except ModelError as error:
        fix = "the message says how; grpo train refuses the folder with the same words"
        reason = Finding(code="cannot_load", severity="error", message=str(error), fix=fix)
        return Diagnosis(model=source.given, architecture=None, parameters=None, findings=(reason,))
    return Diagnosis(
        model=source.given,
        architecture=type(loaded.model).__name__,
        parameters=loaded.parameters(),
        findings=tuple(findings(loaded, config)),
    )


def findings(loaded: LoadedModel, config: AnsweringConfig | None) -> list[Finding]:
    """What the checks report of a loaded model."""
    return [finding for check in _CHECKS for finding in check(loaded, config)]


def tokenizer_findings(tokenizer: Any, config: AnsweringConfig | None) -> list[Finding]:
    """What the checks that need no weights report."""
    return [
        *_tokenizer(tokenizer, config),
        *_chat_template(tokenizer, config),
        *_turn_end(tokenizer, config),
    ]


def _template(tokenizer: Any, config: AnsweringConfig | None) -> ChatTemplate | None:
    """The one that a run would use. Raises DataError where it has a fault."""
    prompts = config.data if config is not None else None
    given = prompts.chat_template if prompts is not None else None
    text = given or template_of(tokenizer)
    if text is None or (prompts is not None and prompts.chat == "none"):
        return None
    kwargs = prompts.chat_template_kwargs if prompts is not None else {}
    source = "data.chat_template" if given else "the tokenizer"
    return ChatTemplate(tokenizer, text, source=source, kwargs=kwargs, system=False)


def _sound_template(tokenizer: Any, config: AnsweringConfig | None) -> ChatTemplate | None:
    """The same; None where it has a fault, which `_chat_template` reports."""
    try:
        return _template(tokenizer, config)
    except DataError:
        return None


def _chat_template(tokenizer: Any, config: AnsweringConfig | None) -> Iterator[Finding]:
    try:
        chat = _template(tokenizer, config)
    except DataError as error:
        yield Finding(
            code="template_fault",
            severity="error",
            message=str(error),
            fix="mend the tokenizer's chat_template.jinja, or give data.chat_template",
        )
        return
    if chat is None:
        if template_of(tokenizer) is None:
            wanted = config is not None and (config.data.chat == "template" or config.data.system is not None)
            yield Finding(
                code="template_missing",
                severity="error" if wanted else "note",
                message="the tokenizer has no chat template",
                fix="give data.chat_template for an instruct model; a base model sees data.template alone",
            )
        return
    _, _, begun = chat.render([Message("user", _ASKED)]).rpartition(_ASKED)
    components = config.reward.components if isinstance(config, RunConfig | SampleConfig) else ()
    for tag in dict.fromkeys(_TAG.findall(begun)):
        waiting = [component.name for component in components if tag in _tags_of(component)]
        if not waiting and tag != "think":
            continue
        yield Finding(
            code="template_opens_tag",
            severity="error" if waiting else "note",
            message=f"the chat template of {chat.source} itself writes <{tag}>, so no completion contains it"
            + (f", and the reward {', '.join(waiting)} waits for it: each completion fails" if waiting else ""),
            fix=f"give data.chat_template without it and data.prefill '<{tag}>', which rewards that judge the form are "
            "given",
        )


def _tags_of(component: RewardComponent) -> Collection[str]:
    """Tags without which the component pays nothing."""
    fields = reward_kinds()[component.kind].params.model_fields
    given = {name: component.params.get(name, field.default) for name, field in fields.items()}
    if component.kind == "r1_format":
        return ("think", "answer")
    if component.kind == "tags":
        return re.findall(r"[A-Za-z]\w*", str(given["sequence"]))
    return ("answer",) if given.get("extract") == "answer_tag" else ()


def _ends(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    by_place = {place: ids for place, ids in end_ids(loaded.model, loaded.tokenizer).items() if ids}
    chat = _sound_template(loaded.tokenizer, config)
    end = chat.turn_end() if chat is not None else None
    if end is not None and end.token is not None:
        by_place["chat template"] = {end.token}
    every = set[int]().union(*by_place.values())
    if not every and not (end is not None and end.text):
        yield Finding(
            code="no_end",
            severity="error",
            message="no token ends a completion: generation_config, config, tokenizer and chat template name none",
            fix=f"give eos_token_id in {GENERATION}",
        )
    words = {id_: loaded.tokenizer.convert_ids_to_tokens(id_) for id_ in sorted(every)}
    if any(ids != every for ids in by_place.values()):
        shown = ", ".join(f"{place} {_listed(ids, words)}" for place, ids in by_place.items())
        yield Finding(
            code="ends_differ",
            severity="warning",
            message=f"the ids that end a completion differ: {shown}. A run ends with any of them",
            fix=f"set eos_token_id to {sorted(every)} in {GENERATION}, as the trained folder has it; other programs "
            "obey that file alone",
        )


def _turn_end(tokenizer: Any, config: AnsweringConfig | None) -> Iterator[Finding]:
    chat = _sound_template(tokenizer, config)
    end = chat.turn_end() if chat is not None else None
    stop = config.sampling.stop if config is not None else ()
    if end is None or end.token is not None or not end.text or any(text in end.text for text in stop):
        return
    first = end.text.splitlines()[0][:80]
    yield Finding(
        code="turn_end_not_a_token",
        severity="warning",
        message=f"the chat template ends a turn with {first!r}, which is no single token, so no completion ends by it",
        fix=f"give sampling.stop: [{first!r}]",
    )


def _listed(ids: set[int], words: dict[int, str]) -> str:
    return " and ".join(f"{id_} ({words[id_]})" for id_ in sorted(ids))


def _padding(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    pad = loaded.tokenizer.pad_token_id
    if pad is None:
        message, code = "the tokenizer has no padding token", "pad_missing"
    elif pad in loaded.eos_ids:
        message, code = (
            f"the padding token is {pad} ({loaded.tokenizer.pad_token}), which ends a completion",
            "pad_is_end",
        )
    else:
        return
    yield Finding(
        code=code,
        severity="note",
        message=message,
        fix="nothing for a run of Cohort, which knows completions by their length; a trainer that masks padding by "
        "its id never teaches such a model to end",
    )


def _tokenizer(tokenizer: Any, config: AnsweringConfig | None) -> Iterator[Finding]:
    plain, added = (tokenizer("a", add_special_tokens=flag)["input_ids"] for flag in (False, True))
    if added == plain:
        return
    start = next(i for i in range(len(added) - len(plain) + 1) if added[i : i + len(plain)] == plain)
    before, after = added[:start], added[start + len(plain) :]
    chat = _sound_template(tokenizer, config)
    begin, end = (tokenizer.convert_ids_to_tokens(ids) for ids in (before, after))
    if after:
        yield Finding(
            code="tokenizer_appends",
            severity="warning",
            message=f"the tokenizer appends {end} to every text: a prompt encoded so is over before the answer begins. "
            "Prompts of a run are encoded without it",
            fix="take the end out of the post-processor in tokenizer.json; other programs do not leave it out",
        )
    shown = chat.render([Message("user", "a")]) if chat is not None else ""
    if before and shown.startswith(begin[0]):
        yield Finding(
            code="two_beginnings",
            severity="warning",
            message=f"both the chat template and the tokenizer begin a prompt with {begin}. Prompts of a run have it "
            "once",
            fix="encode rendered conversations with add_special_tokens=False in other programs",
        )


def _generation(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    file = loaded.source.folder / GENERATION
    given = read_json_object(file) if file.is_file() else {}
    obeyed = {name: given[name] for name in _OBEYED if given.get(name) is not None}
    if obeyed:
        shown = ", ".join(f"{name} {value}" for name, value in obeyed.items())
        yield Finding(
            code="generation_defaults",
            severity="warning",
            message=f"{GENERATION} sets {shown}, which transformers and vLLM obey. A run samples as its config says",
            fix="nothing for the run: the trained folder leaves them out and keeps the end ids; give them where it is "
            "served",
        )


def _lora(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    lora = config.model.lora if config is not None else LoraConfig(rank=1)
    if not lora.rank:
        return
    try:
        adapted = set(adapter_layers(loaded.model)) or set(chosen_layers(loaded.model, lora))
    except ModelError as error:
        fix = "train all weights (model.lora.rank 0)"
        yield Finding(code="lora_fits_nothing", severity="error" if config else "note", message=str(error), fix=fix)
        return
    missed: dict[str, int] = {}
    for name, module in _matrices(loaded.model, lora):
        if name not in adapted:
            kind = f"{name.rpartition('.')[2]} ({type(module).__name__})"
            missed[kind] = missed.get(kind, 0) + sum(p.numel() for p in module.parameters(recurse=False) if p.ndim > 1)
    if missed:
        shown = ", ".join(f"{kind} {count:,} weights" for kind, count in sorted(missed.items()))
        yield Finding(
            code="lora_misses_layers",
            severity="warning" if config else "note",
            message=f"model.lora.targets {lora.targets} adapts {len(adapted)} layers and leaves out {shown}",
            fix="train all weights (model.lora.rank 0) where these must learn too",
        )


def _matrices(model: Any, lora: LoraConfig) -> Iterator[tuple[str, nn.Module]]:
    """Modules with matrices of their own that the targets mean, but for embeddings and output layer."""
    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        name = name.removesuffix(".base_layer")
        if isinstance(module, nn.Embedding) or module is output or ".lora_" in name:
            continue
        if lora.targets == "attention" and not any(word in name for word in ATTENTION_NAMES):
            continue
        if any(weight.ndim > 1 for weight in module.parameters(recurse=False)):
            yield name, module


def _layout(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    try:
        resolve_layout(loaded, config.engine.layout if config is not None else "auto")
    except ModelError as error:
        fix = "set engine.layout: auto"
        yield Finding(code="layout_refused", severity="error", message=str(error), fix=fix)
    if loaded.unshared is not None:
        yield Finding(
            code="layout_falls_back",
            severity="note",
            message=f"engine.layout auto is right for this model: {loaded.unshared}",
            fix="nothing; the update repeats each prompt for each of its completions, which takes longer",
        )


def _rows(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    tokenizer, rows = loaded.tokenizer, loaded.rows
    beyond = {token: id_ for token, id_ in tokenizer.get_vocab().items() if id_ >= rows}
    if not beyond:
        return
    chat = _sound_template(tokenizer, config)
    text = chat.render([Message("user", "a")]) if chat is not None else "a"
    used = {id_ for id_ in tokenizer(text)["input_ids"] if id_ >= rows}
    first, id_ = min(beyond.items(), key=lambda item: item[1])
    yield Finding(
        code="tokenizer_too_large",
        severity="error" if used else "warning",
        message=f"the tokenizer has {len(beyond)} tokens beyond the {rows} rows of the model's embedding, first "
        f"{first!r}, id {id_}. "
        + ("Every prompt has one" if used else "A run is refused where a prompt has one; no completion does"),
        fix="take the model's own tokenizer, or resize its embedding (transformers: resize_token_embeddings) and save "
        "the folder",
    )


def _head(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    if (reason := not_plain(loaded.model)) is not None:
        yield Finding(
            code="head_by_autograd",
            severity="note",
            message=f"log-probabilities go through autograd instead of the fused output layer: {reason}",
            fix="nothing; the numbers are the same, and the update computes the output layer's logits twice",
        )


def _without_weights(loaded: LoadedModel, config: AnsweringConfig | None) -> Iterator[Finding]:
    yield from tokenizer_findings(loaded.tokenizer, config)


_CHECKS: tuple[Check, ...] = (_rows, _ends, _padding, _without_weights, _generation, _lora, _layout, _head)
