// lab-form.js: the editor of a verifier's source; nodes.js: copying a token.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Element, load, settled } from "./page.mjs";

const editor = (text, from = text.length, to = from) => {
  const area = new Element("textarea", { value: text, selectionStart: from, selectionEnd: to, attributes: { "hx-target": "#said" } });
  area.setSelectionRange = (start, end) => Object.assign(area, { selectionStart: start, selectionEnd: end });
  const lines = new Element("div"), said = new Element("div", { dataset: { lines: "2" } });
  const box = new Element("div", { found: { textarea: area, ".editor-lines": lines }, parentElement: new Element() });
  const { document } = load("lab-form.js", { ids: { said }, found: { "[data-editor]:not(.is-live)": box, "[data-editor].is-live": box } });
  document.execCommand = (_, __, put) => {
    const { value, selectionStart: start, selectionEnd: end } = area;
    area.value = value.slice(0, start) + put + value.slice(end);
    area.setSelectionRange(start + put.length, start + put.length);
  };
  const press = (key, more = {}) => area.fire("keydown", { key, target: area, ...more }).prevented;
  return { area, lines, said, document, press, chosen: () => area.value.slice(area.selectionStart, area.selectionEnd) };
};

test("Tab indents to the next stop, Shift+Tab takes one back", () => {
  const { area, press } = editor("ab");
  assert.ok(press("Tab"));
  assert.equal(area.value, "ab  ");
  press("Tab");
  assert.equal(area.value, "ab      ");
  const back = editor("    ab");
  back.press("Tab", { shiftKey: true });
  assert.deepEqual([back.area.value, back.area.selectionStart], ["ab", 2]);
  assert.ok(back.press("Tab", { shiftKey: true }), "nothing is left to withdraw");
  assert.equal(back.area.value, "ab");
});

test("Tab indents all lines of a selection and keeps it, and empty ones not", () => {
  const { area, press, chosen } = editor("x\na\n\n  b\ny", 3, 8);
  press("Tab");
  assert.equal(area.value, "x\n    a\n\n      b\ny");
  assert.equal(chosen(), "    a\n\n      b");
  press("Tab", { shiftKey: true });
  assert.equal(area.value, "x\na\n\n  b\ny");
});

test("Enter keeps the indentation and adds one after a colon", () => {
  for (const [text, after] of [["  a", "  a\n  "], ["if x:", "if x:\n    "], ["  if x:  # why", "  if x:  # why\n      "], ["", "\n"]]) {
    const { area, press } = editor(text);
    assert.ok(press("Enter"));
    assert.equal(area.value, after);
  }
});

test("Escape lets the next Tab leave; keys with a modifier are the browser's", () => {
  const { area, press } = editor("a");
  press("Escape");
  press("Shift", { shiftKey: true });
  assert.ok(!press("Tab", { shiftKey: true }));
  assert.ok(press("Tab"), "only the next");
  assert.ok(!press("Enter", { ctrlKey: true }));
  assert.ok(!press("Enter", { shiftKey: true }));
  assert.equal(area.value, "a   ");
});

test("lines are numbered and those at fault marked", () => {
  const { area, lines, said, document } = editor("a\nb\nc");
  const marked = () => lines.children.filter(({ className }) => className === "faulty").map(({ textContent }) => textContent);
  assert.deepEqual([lines.children.length, marked()], [3, ["2"]]);
  area.value = "a";
  area.fire("input");
  assert.equal(lines.children.length, 1);
  said.dataset.lines = " 1 ";
  document.fire("htmx:afterSettle");
  assert.deepEqual(marked(), ["1"]);
});

test("a token is copied, or selected where the browser gives no clipboard", async () => {
  for (const works of [true, false]) {
    const copied = [], button = new Element("button", { dataset: { copy: "token" }, hidden: true });
    const text = new Element("code", { textContent: "secret" });
    const writeText = async (value) => {
      if (!works) throw new Error("no clipboard");
      copied.push(value);
    };
    const { document } = load("nodes.js", { ids: { token: text }, found: { "[data-copy]": button }, globals: { navigator: { clipboard: { writeText } } } });
    const selected = [];
    document.addEventListener("selected", ({ node }) => selected.push(node));
    assert.equal(button.hidden, false);
    button.fire("click");
    await settled();
    assert.match(button.textContent, works ? /^Copied/ : /^Selected/);
    assert.deepEqual([copied, selected], works ? [["secret"], []] : [[], [text]]);
  }
});
