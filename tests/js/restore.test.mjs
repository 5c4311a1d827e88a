// restore.js: what is kept of the forms of a page, for whom, and until when. tests/web/test_restore_browser.py has the rest.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Element, load } from "./page.mjs";

const KEPT = "unsent-forms";
const control = (name, type, value = "", more = {}) =>
  Object.assign(new Element("input", { dispatchEvent() {} }), { name, type, value, defaultValue: "", ...more });

// A window: its storage outlives its pages. `show` opens a page for a user ("" for none), with one form.
const openWindow = () => {
  const stored = new Map();
  const channel = { addEventListener: (_, heard) => (channel.heard = heard), postMessage: () => channel.sent++, sent: 0 };
  const sessionStorage = {
    getItem: (name) => stored.get(name) ?? null,
    setItem: (name, value) => stored.set(name, value),
    removeItem: (name) => stored.delete(name),
  };
  const show = (user, pathname = "/notes/", elements = [control("note", "textarea")]) => {
    const form = new Element("form", { attributes: { action: "/notes/" }, elements, lines: [] });
    form.querySelectorAll = (selector) => (selector === ".error-text" && form.faulty ? [new Element()] : []);
    form.prepend = (line) => form.lines.push(line.textContent);
    const content = new Element("div");
    content.prepend = (line) => form.lines.push(line.textContent);
    for (const each of elements) each.closest = () => null;
    const globals = {
      sessionStorage, location: { pathname, search: "" },
      BroadcastChannel: class { constructor() { return channel; } }, Event: class {},
    };
    const page = load("restore.js", {
      found: { "form[method=post]": form, ".page-in": content }, globals, body: new Element("body", { dataset: user ? { user } : {} }),
    });
    return { ...page, form, elements };
  };
  return { stored, channel, show };
};

const opened = (page) => {
  page.window.fire("load");
  page.clock.advance(0);
  return page;
};
// A page is left with this note typed; the sign-in page comes.
const expire = (own, note = "typed", more = []) => {
  const elements = [control("note", "textarea"), ...more];
  const page = own.show("1", "/notes/", elements);
  elements[0].value = note;
  page.window.fire("pagehide");
  own.show("", "/login/");
};

test("what was typed is put back once, for the same person on the same page", () => {
  const own = openWindow();
  expire(own);
  opened(own.show("1", "/elsewhere/"));
  const back = opened(own.show("1"));
  assert.equal(back.elements[0].value, "typed");
  assert.deepEqual(back.form.lines, ["Restored what you had typed. It is not sent yet."]);
  assert.equal(own.stored.size, 0);
  expire(own);
  assert.deepEqual(opened(own.show("2")).form.lines, []);
  assert.equal(own.stored.size, 0, "another person's");
});

test("a form that was sent, or left, is not filled again", () => {
  const own = openWindow(), elements = [control("note", "textarea")], page = own.show("1", "/notes/", elements);
  elements[0].value = "typed";
  page.window.fire("pagehide");
  assert.deepEqual(opened(own.show("1")).form.lines, []);
  assert.equal(own.stored.size, 0);
});

test("nothing secret, hidden or untouched is kept", () => {
  const own = openWindow();
  expire(own, "");
  assert.equal(own.stored.size, 0, "nothing was typed");
  const secrets = ["password", "hidden", "file"].map((type) => control(type, type, "secret"));
  expire(own, "typed", [...secrets, control("agreed", "checkbox", "yes", { checked: true, defaultChecked: false })]);
  assert.deepEqual(JSON.parse(own.stored.get(KEPT)).forms[0].fields, [["note", null, "typed"], ["agreed", "yes", true]]);
});

test("a sign-out forgets it, in every window of the browser", () => {
  const own = openWindow(), other = openWindow();
  expire(own);
  const elements = [control("note", "textarea", "more")], page = own.show("1", "/elsewhere/", elements);
  page.document.fire("submit", { target: new Element("form", { is: ["[data-sign-out]"] }) });
  page.window.fire("pagehide");
  assert.deepEqual([own.stored.size, own.channel.sent], [0, 1]);
  const theirs = other.show("1", "/notes/", [control("note", "textarea", "typed")]);
  other.channel.heard();
  theirs.window.fire("pagehide");
  assert.equal(other.stored.size, 0);
});

test("what is longer than the browser keeps is said to be lost", () => {
  const own = openWindow(), set = own.stored.set.bind(own.stored);
  own.stored.set = (name, value) => {
    if (value.length > 1000) throw new Error("QuotaExceededError");
    set(name, value);
  };
  expire(own, "x".repeat(2000));
  const back = opened(own.show("1"));
  assert.deepEqual([back.elements[0].value, back.form.lines], ["", ["What you had typed was too long for this browser to keep."]]);
});

test("a form that came back with faults is kept as it is", () => {
  const own = openWindow(), elements = [control("note", "textarea", "typed", { defaultValue: "typed" })];
  const page = own.show("1", "/notes/", elements);
  page.form.faulty = true;
  page.window.fire("pagehide");
  own.show("", "/login/");
  assert.equal(opened(own.show("1")).elements[0].value, "typed");
});
