"""Adding a dataset in a real browser: the file is read as it is chosen, its columns are mapped, and nothing is lost by
what is refused."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from cohort.catalog.models import PromptDataset
from tests.browser import picture
from tests.factories.runs import Maker
from tests.web.test_dataset_reading import ODD, VERL, parquet_of
from tests.web.windows import GIVEN_UP, serious_faults, windows

pytestmark = pytest.mark.slow


def test_a_parquet_s_columns_are_mapped_after_a_wrong_file(
    browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer, tmp_path: Path
) -> None:
    odd, verl, page_file = tmp_path / "odd.parquet", tmp_path / "verl.parquet", tmp_path / "page.json"
    odd.write_bytes(parquet_of(ODD, {**ODD, "note": "second"}))
    verl.write_bytes(parquet_of(VERL, VERL))
    page_file.write_bytes(b"<!DOCTYPE html><html></html>")
    with windows(browser, live_server.url, meant=GIVEN_UP) as opened:
        page = opened("datasets/new/")
        reading = page.locator("#dataset-reading")
        page.get_by_label("Name").fill("mapped")
        page.locator("#id_file").set_input_files(page_file)
        expect(reading).to_contain_text("page.json: is a web page")
        page.locator("#id_file").set_input_files(verl)
        expect(reading).to_contain_text("Parquet, verl: 2 problems")
        expect(reading).to_contain_text("Be short.")
        picture(page, "dataset-verl")
        assert serious_faults(page, "dataset") == []
        page.locator("#id_file").set_input_files(odd)
        expect(reading).to_contain_text("is of no known layout")
        picture(page, "dataset-odd")
        page.get_by_label("Prompt column").select_option("q")
        expect(page.get_by_label("Prompt column")).to_have_value("q")
        page.get_by_label("Answer column").select_option("gold.value")
        expect(reading).to_contain_text("Parquet, Prompt and answer: 2 problems")
        page.get_by_role("button", name="Check and store").click()
        page.wait_for_url("**/datasets/*/")
        expect(page.locator("main")).to_contain_text("answer from gold.value")
        picture(page, "dataset-stored")
    dataset = PromptDataset.objects.get(name="mapped")
    assert (dataset.container, dataset.mapping) == ("parquet", {"prompt": "q", "answer": "gold.value"})
