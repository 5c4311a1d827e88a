"""Reading the run form's page as a person or a browser would."""

import re
from html import unescape


def note(page: str, field: str) -> str:
    """What stands beneath a field, errors and help."""
    match = re.search(
        rf'<div class="said[^"]*" id="said-{re.escape(field)}"[^>]*>(.*?)</div>\s*</div>', page, re.DOTALL
    )
    assert match is not None, f"nothing is said beneath {field}"
    return match[1]


def error(page: str, field: str) -> str:
    match = re.search(r'<div class="error-text[^>]*>(.*?)(</div>|$)', note(page, field), re.DOTALL)
    return match[1] if match else ""


def value(page: str, name: str) -> str:
    match = re.search(rf'name="{re.escape(name)}" value="([^"]*)"', page)
    assert match is not None, name
    return match[1]


def selected(page: str, name: str) -> str:
    options = re.search(rf'<select[^>]* name="{name}".*?</select>', page, re.DOTALL)
    assert options is not None, name
    match = re.search(r'<option value="([^"]*)" selected', options[0])
    return match[1] if match else ""


def as_browser(page: str, begins: str = '<form id="run-form"') -> dict[str, str]:
    """What a browser would send for the form of this page: of a name given twice the last, of several ticked checkboxes
    each one, a line each."""
    form = page[page.index(begins) : page.index("</form>", page.index(begins))]
    form = re.sub(r"<template.*?</template>", "", form, flags=re.DOTALL)
    sent: dict[str, str] = {}
    ticked: set[str] = set()
    for tag in re.finditer(r"<input [^>]*>", form):
        attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', tag[0]))
        if attributes.get("type") == "checkbox" and " checked" not in tag[0]:
            continue
        name, checkbox = attributes["name"], attributes.get("type") == "checkbox"
        text = unescape(attributes.get("value", "on" if checkbox else ""))
        sent[name] = f"{sent[name]}\n{text}" if checkbox and name in ticked else text
        ticked |= {name} if checkbox else set()
    for name, text in re.findall(r'<textarea [^>]*name="([^"]+)"[^>]*>\n(.*?)</textarea>', form, re.DOTALL):
        sent[name] = unescape(text).replace("\n", "\r\n")
    for name, options in re.findall(r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>', form, re.DOTALL):
        chosen = re.search(r'<option value="([^"]*)" selected', options) or re.search(
            r'<option value="([^"]*)"', options
        )
        sent[name] = unescape(chosen[1]) if chosen else ""
    return sent
