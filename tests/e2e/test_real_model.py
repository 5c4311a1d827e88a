"""A published model and published data, as a person brings them: SmolLM2-135M-Instruct, a Parquet as verl reads it and
one of columns that nobody knows, the exact tokens before the launch, and a run whose completions are cut off, read on
its page (pytest -m real, after make smollm2)."""

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from playwright.sync_api import expect
from pyarrow import parquet

from tests.browser import picture
from tests.e2e.person import MINUTES, Person, choose, signed_in
from tests.needs import SMOLLM2, needs

pytestmark = pytest.mark.real
LIMIT = 4
"""Tokens of a completion, fewer than a sentence has."""
THINGS = ("sea", "sky", "sun", "moon", "grass", "snow", "coal", "rose")
SYSTEM = "Answer in a sentence."


def verl_row(number: int, thing: str) -> dict[str, Any]:
    return {
        "data_source": "own/colours",
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"What colour is the {thing}?"},
        ],
        "ability": "words",
        "reward_model": {"ground_truth": f"The {thing} has a colour that I like.", "style": "rule"},
        "extra_info": {"index": number, "split": "train"},
    }


def odd_row(thing: str) -> dict[str, Any]:
    return {"frage": f"Which colour has the {thing}?", "loesung": {"wert": f"The {thing} is bright."}, "note": "kept"}


def test_a_published_model_trains_on_published_data_and_its_page_names_the_cut_off(
    cohort_home: Path, tmp_path: Path
) -> None:
    needs("smollm2")
    shutil.copytree(SMOLLM2, cohort_home / "models" / "smollm2")
    for name, rows in (
        ("verl", [verl_row(number, thing) for number, thing in enumerate(THINGS)]),
        ("odd", [odd_row(thing) for thing in THINGS]),
    ):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    with signed_in(cohort_home, tmp_path) as (alice, _):
        look_at_the_model(alice)
        add_datasets(alice)
        write_reward(alice)
        fill_form(alice)
        see_tokens(alice)
        train(alice)


def look_at_the_model(alice: Person) -> None:
    alice.register_model("smollm2")
    doctor = alice.page.locator("#doctor")
    doctor.get_by_role("button", name="Look at it").click()
    expect(doctor).to_contain_text("134,515,008 parameters")
    expect(doctor).to_contain_text("the padding token is 2")
    picture(alice.page, "real-model")


def add_datasets(alice: Person) -> None:
    page = alice.page
    page.goto(f"{alice.address}/p/lab/datasets/new/")
    reading = page.locator("#dataset-reading")
    page.locator("#id_name").fill("colours")
    page.locator("#id_file").set_input_files(alice.data / "verl.parquet")
    expect(reading).to_contain_text("Parquet, verl: 8 problems")
    expect(reading).to_contain_text(SYSTEM)
    page.get_by_role("button", name="Check and store").click()
    page.get_by_role("heading", name="colours", exact=True).wait_for()

    page.goto(f"{alice.address}/p/lab/datasets/new/")
    page.locator("#id_name").fill("odd names")
    page.locator("#id_file").set_input_files(alice.data / "odd.parquet")
    expect(reading).to_contain_text("is of no known layout")
    page.get_by_label("Prompt column").select_option("frage")
    expect(page.get_by_label("Prompt column")).to_have_value("frage")
    page.get_by_label("Answer column").select_option("loesung.wert")
    expect(reading).to_contain_text("Parquet, Prompt and answer: 8 problems")
    picture(page, "real-mapping")
    page.get_by_role("button", name="Check and store").click()
    page.get_by_role("heading", name="odd names", exact=True).wait_for()


def write_reward(alice: Person) -> None:
    page = alice.page
    page.goto(f"{alice.address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("close to it")
    page.locator("#id_component-0-kind").select_option("similarity")
    page.locator("#id_component-0-name").fill("close")
    page.locator("#id_component-0-p_measure").select_option("chrf")
    page.locator("#id_component-0-p_extract").select_option("whole")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="close to it", exact=True).wait_for()


def fill_form(alice: Person) -> None:
    page = alice.page
    page.goto(f"{alice.address}/p/lab/runs/new/")
    page.locator("#f-name").fill("Colours")
    choose(page, "base_model", "smollm2")
    choose(page, "dataset", "odd names")
    choose(page, "verifier_version", "close to it")
    for field in ("optim-lr", "sampling-prompts-per-step"):
        page.locator("details.fold", has=page.locator(f"#f-{field}")).locator("summary").click()
    for field, text in {
        "eval-holdout": "2",
        "optim-steps": "3",
        "optim-lr": "1e-5",
        "sampling-group-size": "2",
        "sampling-prompts-per-step": "2",
        "sampling-max-completion-tokens": str(LIMIT),
    }.items():
        page.locator(f"#f-{field}").fill(text)
    page.get_by_text("every setting is valid").wait_for()


def see_tokens(alice: Person) -> None:
    """Of the mapped file, and again of the one that the run trains on."""
    page = alice.page
    panel = page.locator("#preview")
    page.locator("#show-tokens").click()
    first = panel.locator("article").first
    expect(first.locator(".tokens")).to_contain_text("You are a helpful AI assistant named SmolLM")
    expect(first.locator(".tokens")).to_contain_text(re.compile(r"Which colour has the \w+\?"))
    choose(page, "dataset", "colours")
    expect(panel).to_contain_text("of other settings")
    page.locator("#show-tokens").click()
    expect(first.locator(".tokens")).to_contain_text(SYSTEM)
    marks = first.locator(".tokens mark").all_inner_texts()
    assert marks == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]
    expect(first.locator(".tokens")).to_have_text(re.compile(r"assistant\s+The answer begins here:\s+▸\s*$"))
    expect(panel).to_contain_text("of the tokenizer")
    expect(panel).not_to_contain_text("of other settings")
    picture(page, "real-tokens")


def train(alice: Person) -> None:
    page = alice.page
    page.get_by_text("every setting is valid").wait_for()
    page.get_by_label("Reason for the override").fill("The reward is of this test alone.")
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
    page.locator("#card-link").wait_for(timeout=30 * MINUTES)
    page.locator(".title .badge", has_text="Succeeded").wait_for()
    diagnosis = page.locator("#diagnosis")
    expect(diagnosis).to_contain_text(re.compile(rf"[34] of 4 completions were truncated at {LIMIT} tokens\."))
    expect(diagnosis).to_contain_text("Raise sampling.max_completion_tokens")
    picture(page, "real-run")
