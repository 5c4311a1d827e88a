"""Margins of non-inferiority: at most 0.2 in every form."""

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuite
from cohort.runs.models import Run
from tests.factories.suites import ITEMS, add_suite, upload
from tests.web.form_page import note, value

NEW = "/p/ours/runs/new/"


@pytest.mark.parametrize(("text", "taken"), [("0.2", True), ("0.21", False), ("5", False)])
def test_one_larger_than_20_points_is_taken_by_no_form(
    ours: Project, oscar: User, chosen: dict[str, str], text: str, taken: bool, operator: Client
) -> None:
    suite = add_suite(ours, oscar, name="planets")
    sent: dict[str, str] = {f"suite.{suite.pk}": "true", f"suite.{suite.pk}.margin": text}
    answers = [operator.post(NEW, {**chosen, **more, "action": "draft"}) for more in (sent, {"eval.margin": text})]
    answers.append(upload(operator, ("items.jsonl", ITEMS), margin=text))
    assert [answer.status_code for answer in answers] == [302 if taken else 422] * 3
    assert (Run.objects.count(), EvalSuite.objects.count()) == ((2, 2) if taken else (0, 1))
    if not taken:
        of_suite, of_all, of_upload = (answer.content.decode() for answer in answers)
        assert "at most 0.2 (20 points)" in note(of_suite, f"f-suite-{suite.pk}-margin")
        assert value(of_suite, f"suite.{suite.pk}.margin") == text
        assert "at most 0.2 (20 points)" in note(of_all, "f-eval-margin")
        assert "at most 0.2 (20 points)" in of_upload.split('id="id_margin_error"')[1][:300]
