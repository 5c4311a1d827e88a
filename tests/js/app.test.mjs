// app.js: forms and polls of every page, and what is said when something asked for does not come; theme.js.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Element, load } from "./page.mjs";

const POLL = "[data-poll], [hx-trigger^=every]", GUARDED = "[data-poll], [hx-trigger^=every], #run-form";
const CLICKED = "a, button, summary, label";
const polled = () => new Element("div", { is: [POLL, GUARDED] });
const pressable = new Element("button", { is: [CLICKED] });

const request = (elt, more = {}) => ({ detail: { requestConfig: { elt }, ...more } });
const app = (options = {}) => {
  const page = load("app.js", options);
  return { ...page, trouble: page.document.body.children[0] };
};

test("nothing polled is swapped away while a button is pressed", () => {
  const { document, clock } = app();
  const swapped = (elt) => {
    const event = request(elt, { shouldSwap: true });
    document.fire("htmx:beforeSwap", event);
    return event.detail.shouldSwap;
  };
  assert.ok(swapped(polled()));
  document.fire("pointerdown", { button: 0, target: pressable });
  assert.ok(!swapped(polled()));
  assert.ok(swapped(new Element("form")), "what a person asked for is");
  document.fire("pointerup");
  clock.advance(0);
  assert.ok(swapped(polled()));
  document.fire("pointerdown", { button: 2, target: pressable });
  assert.ok(swapped(polled()), "the menu's button makes no click");
  document.fire("pointerdown", { button: 0, target: new Element("div") });
  assert.ok(swapped(polled()), "a press on a scroll bar has no end here");
});

test("a check that was missed during a press is made again after it", () => {
  const triggered = [];
  const { document, clock } = app({ globals: { htmx: { trigger: (elt, name) => triggered.push(`${elt.id} ${name}`) } } });
  document.fire("pointerdown", { button: 0, target: pressable });
  document.fire("htmx:beforeSwap", request(new Element("form", { id: "run-form", is: [GUARDED], isConnected: true }), {}));
  document.fire("pointercancel");
  assert.deepEqual(triggered, [], "after the click");
  clock.advance(0);
  assert.deepEqual(triggered, ["run-form change"]);
});

test("a check does not overtake a preset or a measurement", () => {
  const { document, clock } = app();
  const form = new Element("form", { id: "run-form", found: {} });
  const confirmed = (target) => !document.fire("htmx:confirm", { target }).prevented;
  assert.ok(confirmed(form));
  assert.ok(confirmed(new Element("button", { is: ["[hx-sync='closest form:replace']"] })));
  assert.ok(!confirmed(form), "one that waited behind it");
  clock.advance(0);
  assert.ok(confirmed(form));
  form.found["[name=preset].htmx-request"] = new Element("select");
  assert.ok(!confirmed(form), "while the preset is on its way");
});

test("a tab that nobody looks at asks for nothing by itself", () => {
  const { document } = app();
  const asked = (triggeringEvent) =>
    !document.fire("htmx:beforeRequest", { detail: { requestConfig: { triggeringEvent } } }).prevented;
  assert.ok(asked(undefined));
  document.hidden = true;
  assert.ok(!asked(undefined));
  assert.ok(asked({}), "what a person asked for is sent");
});

test("what was asked for and did not come is told until something comes", () => {
  const { document, trouble } = app();
  assert.equal(trouble.hidden, true);
  document.fire("htmx:sendError", request(polled()));
  assert.equal(trouble.hidden, true, "a poll comes again by itself");
  const options = [{ defaultSelected: true, selected: false }, { defaultSelected: false, selected: true }];
  document.fire("htmx:sendError", request(new Element("select", { is: ["select"], options })));
  assert.equal(trouble.hidden, false);
  assert.match(trouble.textContent, /^No answer came/);
  assert.deepEqual(options.map(({ selected }) => selected), [true, false], "to choose the same again would be no change");
  document.fire("htmx:afterRequest", request(polled(), { successful: true }));
  assert.equal(trouble.hidden, false);
  document.fire("htmx:afterRequest", request(new Element("form"), { successful: true }));
  assert.equal(trouble.hidden, true);
});

test("a refusal is told in the words of its page", () => {
  let lines = ["Form out of date", "Nothing was changed."];
  const parsed = { querySelectorAll: () => lines.map((textContent) => ({ textContent })) };
  const { document, trouble } = app({ globals: { DOMParser: class { parseFromString() { return parsed; } } } });
  const refused = () => document.fire("htmx:responseError", request(new Element("form"), { xhr: { responseText: "", status: 403 } }));
  refused();
  assert.equal(trouble.textContent, "Form out of date. Nothing was changed.");
  lines = [];
  refused();
  assert.match(trouble.textContent, /403/);
});

test("what is said beneath a field is said to a screen reader too", () => {
  const said = new Element("div", { id: "said-f" }), field = new Element("input");
  const { document } = app({ found: { ".said": said, '[aria-describedby="said-f"]': field } });
  said.found[".error-text"] = new Element();
  document.fire("htmx:afterSettle");
  assert.equal(field.getAttribute("aria-invalid"), "true");
  delete said.found[".error-text"];
  document.fire("htmx:afterSettle");
  assert.equal(field.getAttribute("aria-invalid"), null);
});

test("a row is added under the first free number and the focus continues when one is removed", () => {
  const inserted = [], input = new Element("input"), adder = new Element("button");
  const row = (number) => new Element("div", { dataset: { row: String(number) } });
  const rows = new Element("div", {
    dataset: { rows: "part" },
    found: { "[data-row]": [row(0), row(4)] },
    lastElementChild: new Element("div", { found: { "input, select": input } }),
    insertAdjacentHTML: (_, html) => inserted.push(html),
  });
  const found = { '[data-rows="part"]': rows, '[data-add-row="part"]': adder };
  const ids = { part: new Element("template", { innerHTML: "<b id=__n__>__place__ __n__</b>" }) };
  const { document } = app({ ids, found });
  const press = (attributes, more = {}) => {
    const button = new Element("button", { is: ["button"], attributes, dataset: { addRow: "part" }, ...more });
    assert.ok(document.fire("click", { target: button }).prevented);
  };
  press({ "data-add-row": "part" });
  assert.deepEqual(inserted, ["<b id=5>6 5</b>"]);
  assert.deepEqual(input.log, ["focus"]);
  const remover = new Element("button"), next = new Element("div", { found: { "[data-remove-row]": remover } });
  const removed = Object.assign(row(0), { parentElement: rows, nextElementSibling: next });
  press({ "data-remove-row": "" }, { found: { "[data-row]": removed } });
  assert.deepEqual([removed.log, remover.log, adder.log], [["remove"], ["focus"], []]);
  const last = Object.assign(row(4), { parentElement: rows, nextElementSibling: null, previousElementSibling: null });
  press({ "data-remove-row": "" }, { found: { "[data-row]": last } });
  assert.deepEqual(adder.log, ["focus"]);
});

test("the theme is switched, remembered and told to the charts", () => {
  const stored = {}, button = new Element("button", { is: ["button"], attributes: { "data-theme-switch": "" } });
  const localStorage = { getItem: (name) => stored[name] ?? null, setItem: (name, value) => (stored[name] = value) };
  const { document } = app({ found: { "[data-theme-switch]": button }, globals: { localStorage } });
  let told = 0;
  document.addEventListener("cohort:theme", () => told++);
  assert.deepEqual([button.hidden, button.textContent], [false, "Dark theme"]);
  document.fire("click", { target: button });
  assert.deepEqual([document.documentElement.dataset.theme, stored.theme, button.textContent, told], ["dark", "dark", "Light theme", 1]);
  assert.equal(load("theme.js", { globals: { localStorage } }).document.documentElement.dataset.theme, "dark");
  stored.theme = "x";
  assert.equal(load("theme.js", { globals: { localStorage } }).document.documentElement.dataset.theme, undefined);
});
