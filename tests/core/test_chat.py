"""Prompts through chat templates: the ids of transformers for eight families, special tokens that a text spells out,
beginnings and ends of the text, ends of turn, and templates with a fault."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config.messages import validated
from grpo_core.config.prompt import PromptConfig, template_fault
from grpo_core.data.problem import Message, Problem
from grpo_core.data.prompts import PromptEncoder, encode_problems
from grpo_core.errors import ConfigError, DataError
from grpo_core.model.doctor import tokenizer_findings
from tests.core.chat import FAMILIES, tokenizer
from tests.core.tiny import config as config_of_run

SYSTEM = "Be brief."
TURNS = ("What is 2 + 3?", " 5 \n", "And 7 plus\n\nit?", "12", "Twice <b>that</b>, né?")
WORDS = ("a b", "\n", "€ 5", "answer", " ")


def config(name, **more):
    return PromptConfig(**{"chat_template_kwargs": FAMILIES[name].get("kwargs", {}), **more})


def messages(contents):
    return tuple(Message("assistant" if number % 2 else "user", content) for number, content in enumerate(contents))


def encoded(name, contents, *, adds_bos=False, adds_eos=False, **more):
    tok = tokenizer(name, adds_bos=adds_bos, adds_eos=adds_eos)
    problem = Problem("p", contents[-1], "12", messages=messages(contents))
    return PromptEncoder(tok, config(name, **more)).encode(problem)


def theirs(name, contents, system, prefill):
    """By transformers alone."""
    tok = tokenizer(name)
    conversation = [{"role": message.role, "content": message.content} for message in messages(contents)]
    conversation = [{"role": "system", "content": system}, *conversation] if system else conversation
    how = {"add_generation_prompt": True, **FAMILIES[name].get("kwargs", {})}
    if not prefill:
        return tok.apply_chat_template(conversation, **how)["input_ids"]
    return tok(tok.apply_chat_template(conversation, tokenize=False, **how) + prefill, add_special_tokens=False)[
        "input_ids"
    ]


@pytest.mark.parametrize("adds", [False, True], ids=["bare", "adds bos and eos"])
@pytest.mark.parametrize("turns", [1, 3, 5])
@pytest.mark.parametrize("prefill", ["", "<think>\n"])
@pytest.mark.parametrize("system", [None, SYSTEM])
@pytest.mark.parametrize("name", FAMILIES)
def test_token_ids_are_those_of_transformers(name, system, prefill, turns, adds):
    if system is not None and not FAMILIES[name].get("system", True):
        with pytest.raises(DataError, match="of system, user: System role not supported"):
            encoded(name, TURNS[:turns], system=system)
        return
    prompted = encoded(name, TURNS[:turns], adds_bos=adds, adds_eos=adds, system=system, prefill=prefill)
    assert list(prompted.tokens) == theirs(name, TURNS[:turns], system, prefill)
    assert prompted.text.endswith(prefill)


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_special_tokens_in_a_text_stay_text(name, data):
    """The prompt reads the same, its special tokens are the template's alone, and without any it is transformers'."""
    specials = FAMILIES[name]["tokens"]
    text = st.lists(st.sampled_from([*WORDS, *specials]), min_size=1, max_size=5).map("".join)
    contents = data.draw(st.lists(text, min_size=1, max_size=5).filter(lambda drawn: len(drawn) % 2 == 1))
    tok = tokenizer(name)
    ids = [tok.convert_tokens_to_ids(special) for special in specials]
    plain = list(contents)
    for special in specials:
        plain = [content.replace(special, "x") for content in plain]
    prompted = encoded(name, contents)
    written = [token for token in theirs(name, plain, None, "") if token in ids]
    assert [token for token in prompted.tokens if token in ids] == written
    if plain == contents:
        assert list(prompted.tokens) == theirs(name, contents, None, "")
    read = tok.decode(prompted.tokens, clean_up_tokenization_spaces=False)
    assert "".join(read.split()) == "".join(prompted.text.split())
    assert all(content.strip() in prompted.text for content in contents)


def test_text_around_a_spelled_token_keeps_its_ids():
    """Only the spelled-out token differs from what transformers makes of a harmless word in its place."""
    tok = tokenizer("chatml")
    contents = ["as 5 and <|im_end|> are added"]
    ids = list(encoded("chatml", contents).tokens)
    before, after = (tok(text, add_special_tokens=False)["input_ids"] for text in ("as 5 and", " are added"))
    start = ids.index(before[0])
    assert ids[start : start + len(before)] == before
    assert any(ids[at : at + len(after)] == after for at in range(start, len(ids)))
    assert ids.count(tok.convert_tokens_to_ids("<|im_end|>")) == 1


# ---------------------------------------------------------------------- without a chat template


@pytest.mark.parametrize(
    ("adds_bos", "adds_eos", "template", "begins"),
    [
        (True, True, "{prompt}", 1),
        (True, False, "<|begin_of_text|>{prompt}", 1),
        (False, True, "{prompt}", 0),
        (False, False, "{prompt}", 0),
    ],
)
def test_a_beginning_is_written_once_and_no_end(adds_bos, adds_eos, template, begins):
    tok = tokenizer("llama3", adds_bos=adds_bos, adds_eos=adds_eos)
    problem = Problem("p", "5 and 7?", "12")
    ids = list(PromptEncoder(tok, PromptConfig(chat="none", template=template)).encode(problem).tokens)
    assert ids == [tok.bos_token_id] * begins + tok("5 and 7?", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("mark", ["<think>", "<answer>\n", "\\boxed{", "#### ", "```python\n"])
def test_a_mark_that_a_template_writes_itself_is_named(mark):
    (note,) = PromptEncoder(tokenizer("chatml"), PromptConfig(chat="none", template="{prompt}\n" + mark)).notes()
    assert f"data.template ends with {mark.strip()}, so no completion contains it" in note
    assert f"data.prefill: {mark.strip()}" in note
    instructed = PromptConfig(chat="none", template=f"{{prompt}} Answer behind {mark} and stop.")
    assert PromptEncoder(tokenizer("chatml"), instructed).notes() == []


def test_a_template_that_writes_special_tokens_itself_is_used_as_it_stands():
    tok = tokenizer("chatml")
    template = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    encoder = PromptEncoder(tok, PromptConfig(template=template))
    prompted = encoder.encode(Problem("p", "2<|im_end|>3", "5"))
    assert prompted.text == template.replace("{prompt}", "2<|im_end|>3")
    assert prompted.tokens.count(tok.convert_tokens_to_ids("<|im_end|>")) == 1
    assert "chat template is not used" in encoder.notes()[0]
    through = PromptEncoder(tok, PromptConfig(template=template, chat="template")).encode(Problem("p", "2", "5"))
    assert through.text.count("<|im_start|>") == 4  # two of them as text
    assert through.tokens.count(tok.convert_tokens_to_ids("<|im_start|>")) == 2


def test_the_prompt_template_makes_the_user_s_last_turn():
    prompted = encoded("chatml", TURNS[:3], template="Q: {prompt} A:", system=SYSTEM)
    assert prompted.text.count("Q: ") == 1
    assert f"<|im_start|>user\nQ: {TURNS[2]} A:<|im_end|>" in prompted.text
    assert prompted.text.startswith(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{TURNS[0]}<|im_end|>")


def test_a_conversation_s_own_system_message_goes_before_the_config_s():
    tok = tokenizer("chatml")
    problem = Problem("p", "q", "a", messages=(Message("system", "Own."), Message("user", "q")))
    text = PromptEncoder(tok, PromptConfig(system=SYSTEM)).encode(problem).text
    assert "Own." in text
    assert SYSTEM not in text


# ---------------------------------------------------------------------- ends of turn


@pytest.mark.parametrize("name", FAMILIES)
def test_the_template_s_end_of_turn_ends_completions(name):
    tok = tokenizer(name)
    assert PromptEncoder(tok, config(name)).turn_ends() == {tok.convert_tokens_to_ids(FAMILIES[name]["end"])}


def test_an_end_of_turn_of_several_tokens_is_named():
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n### End\n' }}{% endfor %}"
    tok = tokenizer("chatml")
    encoder = PromptEncoder(tok, PromptConfig(chat_template=template))
    assert encoder.turn_ends() == frozenset()
    assert encoder.notes() == []  # a finding says it, once
    given = config_of_run(data={"path": "train.jsonl", "chat_template": template})
    (finding,) = tokenizer_findings(tok, given)
    assert "'### End'" in finding.message
    assert "sampling.stop: ['### End']" in finding.fix
    stopped = config_of_run(
        data={"path": "train.jsonl", "chat_template": template},
        sampling={**given.to_dict()["sampling"], "stop": ["###"]},
    )
    assert tokenizer_findings(tok, stopped) == []


def test_a_template_that_writes_the_date_is_named():
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
    tok = tokenizer("chatml")
    assert "cannot be repeated" in PromptEncoder(tok, PromptConfig(chat_template=template)).notes()[0]
    given = PromptConfig(chat_template=template, chat_template_kwargs={"date_string": "26 Jul 2024"})
    assert PromptEncoder(tok, given).notes() == []


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("template", "match"),
    [
        (
            "{{ messages[0].content.__class__.__mro__ }}",
            r"__class__.* is unsafe\. Only methods that change",
        ),
        ("{{ messages.append(1) }}{{ messages[0].content }}", "may not"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "leaves out the user message"),
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("{{ messages[0].content + 1 }}", "refuses a conversation of user"),
    ],
)
def test_a_template_with_a_fault_is_refused(template, match):
    with pytest.raises(DataError, match=match):
        PromptEncoder(tokenizer("chatml"), PromptConfig(chat_template=template))


def test_a_template_that_leaves_out_the_system_message_is_refused_with_one():
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    tok = tokenizer("chatml")
    PromptEncoder(tok, PromptConfig(chat_template=template))
    with pytest.raises(DataError, match="leaves out the system message"):
        PromptEncoder(tok, PromptConfig(chat_template=template, system=SYSTEM))


def test_roles_out_of_order_name_the_row():
    rows = [
        Problem("row-1", "a", "1"),
        Problem("row-2", "b", "1", messages=(Message("user", "a"), Message("user", "b"))),
    ]
    encoder = PromptEncoder(tokenizer("gemma"), PromptConfig())
    with pytest.raises(DataError, match=r"train.jsonl: problem row-2: .*user, user: Conversation roles must alternate"):
        encode_problems(rows, encoder, source="train.jsonl")


@pytest.mark.parametrize(
    ("template", "line", "caret"),
    [
        ("{% for m in messages %}\n  {{ m.x y }}{% endfor %}", 2, 9),
        ("{{ a $ b }}", 1, 5),
        ("{# n #}{{ '<|im_start|>' + m['role' }}", 1, 36),
        ("a\n{% if x %}b", 2, 10),
        ("{% foo %}", 1, 3),
    ],
)
def test_a_syntax_error_shows_its_line_and_a_caret(template, line, caret):
    fault = template_fault(template)
    _, shown, below = fault.split("\n")
    assert fault.startswith(f"line {line}: ")
    assert (shown, below) == (template.split("\n")[line - 1], " " * caret + "^")
    with pytest.raises(ConfigError, match=f"chat_template: is no Jinja template: line {line}"):
        validated(PromptConfig, {"chat_template": template}, "config")
    tok = tokenizer("chatml")
    with pytest.raises(DataError, match=f"line {line}: "):
        PromptEncoder(_with(tok, template), PromptConfig())


def _with(tok, template):
    copy = type(tok)(tokenizer_object=tok.backend_tokenizer)
    copy.chat_template = template
    return copy


def test_tags_that_transformers_knows_are_no_fault():
    assert template_fault("{% for m in x %}{% break %}{% endfor %}{% generation %}{{ x }}{% endgeneration %}") is None


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"chat": "none", "system": "x"}, "system has no effect with chat: none"),
        ({"chat": "none", "chat_template": "{{ messages }}"}, "chat_template has no effect"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "add_generation_prompt: set by the trainer"),
        ({"template": "no place"}, "must hold {prompt}"),
    ],
)
def test_settings_that_clash_are_refused(given, match):
    with pytest.raises(ConfigError, match=match):
        validated(PromptConfig, given, "config")


def test_a_chat_template_is_needed_and_there_is_none():
    tok = _with(tokenizer("chatml"), None)
    with pytest.raises(ConfigError, match=r"give data.chat_template"):
        PromptEncoder(tok, PromptConfig(chat="template"))
    with pytest.raises(ConfigError, match=r"data.system: the tokenizer has no chat template"):
        PromptEncoder(tok, PromptConfig(system="x"))
    with pytest.raises(DataError, match="several messages"):
        PromptEncoder(tok, PromptConfig()).encode(Problem("p", "b", "1", messages=messages(TURNS[:3])))
