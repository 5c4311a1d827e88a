"""The frame: contrast of every colour pair, the security policy, no inline code, what the sidebar shows whom; and how
numbers, times, states and hostile text are shown, every expected value written by hand.
"""

import re
from datetime import timedelta
from typing import Any

import pytest
from csp.middleware import CSPMiddleware
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.alerts.models import Alert
from cohort.alerts.selectors import alerts_of
from cohort.base import paths
from cohort.nodes.models import Node
from cohort.nodes.services import SILENT_AFTER, nodes_here
from cohort.runs.models import AttemptState, RunState
from cohort.web.context import ProjectFrame
from cohort.web.runs.page import PLOTLY_MAP_STYLE, charts_csp
from cohort.web.templatetags import cohort as show
from tests.factories.runs import Maker
from tests.tables import cases
from tests.web.pages import compact, html
from tests.web.run_page import freeze

_TOKENS = (paths.STATIC / "cohort" / "tokens.css").read_text(encoding="utf-8")
_BLOCK = re.compile(r"color-scheme: (light|dark);(.*?)\}", re.DOTALL)
THEMES = [
    (scheme, dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", body))) for scheme, body in _BLOCK.findall(_TOKENS)
]


def luminance(colour: str) -> float:
    """WCAG 2.2 relative luminance."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, other: str) -> float:
    light, dark = sorted((luminance(colour), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_both_dark_blocks_are_the_same() -> None:
    assert [scheme for scheme, _ in THEMES] == ["light", "dark", "dark"]
    assert THEMES[1] == THEMES[2]
    assert set(THEMES[0][1]) == set(THEMES[1][1])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_pair_of_colours_has_its_contrast(theme: int) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    colours = THEMES[theme][1]
    rows = [case.values for case in cases("pages/contrasts", "colours", "grounds", "least")]
    pairs = [(text, ground, least) for texts, grounds, least in rows for text in texts for ground in grounds]
    assert [pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < pair[2]] == []


def test_no_template_holds_inline_code() -> None:
    """The policy would block it; here it is found without a browser. Only what is handed out as a file, to
    be read offline, carries its style in itself."""
    patterns = {
        "script without src": r"<script(?![^>]*\bsrc=)(?![^>]*type=\"application/json\")",
        "style element": r"<style",
        "event attribute": r"\son[a-z]+\s*=",
        "hx-on": r"\shx-on",
    }
    faults = []
    handed_out = {paths.TEMPLATES / "cards" / f"{name}.html" for name in ("card", "status", "training_content")}
    for template in sorted(set(paths.TEMPLATES.rglob("*.html")) - handed_out):
        text = re.sub(r"\{[%{#].*?[%}#]\}", "", template.read_text(encoding="utf-8"))
        faults += [f"{template.name}: {what}" for what, pattern in patterns.items() if re.search(pattern, text)]
        if re.search(r"\sstyle\s*=", text) and template.parent.name not in ("runs", "review"):
            faults.append(f"{template.name}: style attribute")
    assert faults == []


def policy(response: HttpResponse) -> dict[str, str]:
    return dict(part.strip().split(" ", 1) for part in response["Content-Security-Policy"].split(";"))


@pytest.mark.django_db
def test_policy_allows_nothing_inline() -> None:
    rules = policy(Client().get("/login/"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert not any("unsafe" in rule for rule in rules.values())


def test_chart_pages_get_styles_and_no_scripts_more() -> None:
    rules = policy(CSPMiddleware(charts_csp(lambda request: HttpResponse()))(HttpRequest()))
    assert rules["style-src-attr"] == "'unsafe-inline'"
    assert rules["style-src-elem"] == f"'self' {settings.PLOTLY_EMPTY_STYLE} {PLOTLY_MAP_STYLE}"
    assert rules["img-src"] == "'self' data: blob:"
    assert rules["script-src"] == "'self'"


def test_sidebar_names_project_person_and_role(ours: Project, viewer: Client, bob: User, stranger: Client) -> None:
    page = viewer.get("/p/ours/datasets/").content.decode()
    assert re.search(r"Signed in as.*bob</a>, viewer", page, re.DOTALL)
    assert '<a class="nav-link" href="/p/ours/datasets/" aria-current="page">' in page
    theirs = stranger.get("/p/theirs/datasets/").content.decode()
    for own, other in ((page, "Their project"), (theirs, "Our project")):
        assert other not in own, "the switcher lists a person's own projects"


def test_a_project_called_record_has_its_own_links(ours: Project, viewer: Client) -> None:
    """Pages of a run's record are among the records, by their addresses."""
    Project.objects.filter(pk=ours.pk).update(slug="record")
    assert '<a class="nav-link" href="/p/record/datasets/" aria-current="page">' in html(
        viewer.get("/p/record/datasets/")
    )


def test_not_found_page_gives_a_stranger_nothing(ours: Project, stranger: Client) -> None:
    there, nowhere = stranger.get("/p/ours/datasets/"), stranger.get("/p/never-made/datasets/")
    assert there.status_code == nowhere.status_code == 404
    assert b"Our project" not in there.content
    hide_token = re.compile(rb'(csrfmiddlewaretoken" value="|x-csrftoken": ")[A-Za-z0-9]+')
    assert hide_token.sub(b"", there.content) == hide_token.sub(b"", nowhere.content)


def test_a_poll_after_sign_out_takes_the_whole_page_to_the_sign_in(ours: Project) -> None:
    """And not the sign-in page into the part that was polled."""
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/p/ours/runs/?q=a&state=live"}
    answer = Client().get("/p/ours/counts/", headers=headers)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer["HX-Redirect"] == "/login/?next=%2Fp%2Fours%2Fruns%2F%3Fq%3Da%26state%3Dlive"
    elsewhere = Client().get("/p/ours/counts/", headers=headers | {"HX-Current-URL": "https://evil.example/p/"})
    assert elsewhere["HX-Redirect"] == "/login/"


def test_a_message_is_an_item_of_a_list_in_a_live_region(admin: Client) -> None:
    """A role of the list itself would take its items the list."""
    page = html(admin.post("/password/end-other-sessions/", follow=True))
    assert '<div role="status"><ul class="messages"><li class="toast success">' in page


def test_pages_without_a_frame_lead_back(ours: Project, viewer: Client) -> None:
    for name in ("403_csrf", "413", "500", "507"):
        assert 'href="/">Back to the start</a>' in compact(render_to_string(f"{name}.html")), name
    assert ">Your projects</a>" in html(viewer.get("/people/")), "of no project: there are no runs to go back to"
    assert ">Back to the runs</a>" in html(viewer.get("/p/ours/runs/new/"))


def test_counts_are_polled_as_a_partial(ours: Project, viewer: Client) -> None:
    page = viewer.get("/p/ours/counts/").content.decode()
    assert "<html" not in page
    assert 'id="count-nodes" hx-swap-oob="true">0<' in page


def test_the_sidebar_counts_what_the_desk_and_the_schedule_do(maker: Maker) -> None:
    """It words the conditions once more, in SQL."""
    now, run = timezone.now(), maker.run("adder", state="training")
    alert = {"project": run.project, "run": run, "condition": "search", "opened_at": now, "title": "low", "text": "t"}
    ends: list[dict[str, Any]] = [{}, {}, {"acknowledged_at": now}, {"closed_at": now, "acknowledged_at": now}]
    Alert.objects.bulk_create(Alert(**alert, **end, cause=f"cause {index}") for index, end in enumerate(ends))
    seen: list[dict[str, Any]] = [
        *({"last_seen_at": now}, {"last_seen_at": now}, {"last_seen_at": now}),
        *({}, {"last_seen_at": now - SILENT_AFTER}, {"last_seen_at": now, "revoked_at": now}),
    ]
    Node.objects.bulk_create(Node(name=f"n{index}", token_digest=str(index), **row) for index, row in enumerate(seen))
    frame = ProjectFrame(run.project, "viewer")
    assert frame.open_alerts == alerts_of(run.project).count() == 2
    assert frame.nodes == nodes_here().count() == 3


@pytest.mark.parametrize(("name", "value", "shown"), cases("pages/filters", "filter", "value", "shown"))
def test_a_filter_shows_a_value(name: str, value: float | None, shown: str) -> None:
    now = timezone.now()
    with freeze(now):
        given = now - timedelta(seconds=value) if name == "ago" and value is not None else value
        text = getattr(show, name)(given)
    assert text.replace("\u00a0", " ") == shown


def test_a_duration_may_be_a_timedelta_and_places_be_chosen() -> None:
    assert show.duration(timedelta(minutes=15)) == "15\u00a0min"
    assert show.fixed(-1.005, 1) == "−1.0"


def test_digest_keeps_the_whole_value_at_hand() -> None:
    assert show.digest("0123456789abcdef") == '<span class="mono" title="0123456789abcdef">01234567…</span>'
    assert show.digest("") == "–"


@pytest.mark.parametrize("character", ["\u202e", "\u200b", "\x1b", "\u2066", "\ufeff", "\x00", "\u2028", "\u3164"])
def test_unseen_characters_are_seen(character: str) -> None:
    shown = show.visible(f"a{character}b")
    assert character not in shown
    assert f"\\u{ord(character):04x}</span>b" in shown


def test_visible_escapes_and_keeps_what_is_harmless() -> None:
    assert show.visible("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert show.visible("é 漢 😀\n\t−") == "é 漢 😀\n\t−"
    assert show.visible(None) == ""
    assert show.visible_text("a\u202eb<") == "a\\u202eb<"
    show.visible("\ud800").encode()  # a lone surrogate can be sent


@pytest.mark.parametrize("state", sorted({*RunState.values, *AttemptState.values}))
def test_every_state_has_a_badge_with_its_word_and_a_sign(state: str) -> None:
    badge = show.state_badge(state)
    assert state.capitalize() in badge
    assert 'aria-hidden="true"' in badge


def test_small_marks() -> None:
    assert show.squares([True, False, None, True]) == (
        '<span class="squares" role="img" aria-label="2 of 4 right, 1 masked or not judged"><i class="right"></i>'
        '<i class="wrong"></i><i class="masked"></i><i class="right"></i></span>'
    )
    assert 'max="1" value="0"' in show.progress(3, 0), "empty while the total is unknown"
    assert 'max="120" value="84"' in show.progress(84, 120)
    assert show.compact_json({"a": [1, "é"]}) == '{"a": [1, "é"]}'
    assert show.compact_json("text") == "text"


def test_a_long_prompt_is_cut_in_its_middle() -> None:
    examples = "system: You add. " * 20
    cut = show.both_ends(f"{examples}What is 4 + 10?", 120)
    assert (len(cut), cut[:39], cut[-16:]) == (120, examples[:39], " What is 4 + 10?")
    assert show.both_ends(cut, 120) == cut
