// Loads a page script of the platform into a context with stand-ins for document and window: elements that answer the
// selectors a test gives them, events that a test fires, a clock that a test moves.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const SCRIPTS = new URL("../../platform/cohort/web/static/cohort/", import.meta.url);

class Listeners {
  handlers = {};
  addEventListener(type, handler) {
    (this.handlers[type] ??= []).push(handler);
  }
  fire(type, event = {}) {
    const fired = { type, prevented: false, preventDefault: () => (fired.prevented = true), ...event };
    for (const handler of this.handlers[type] ?? []) handler(fired);
    return fired;
  }
}

export class Element extends Listeners {
  // `found`: what querySelector and closest answer, by selector; `is`: selectors that it matches itself.
  constructor(name = "div", { attributes = {}, dataset = {}, found = {}, is = [], ...fields } = {}) {
    super();
    const classes = new Set();
    this.classList = {
      add: (one) => classes.add(one),
      remove: (one) => classes.delete(one),
      contains: (one) => classes.has(one),
      toggle: (one, on = !classes.has(one)) => (on ? classes.add(one) : classes.delete(one), on),
    };
    Object.assign(this, { name, attributes: { ...attributes }, dataset, found, is, children: [], hidden: false, log: [] }, fields);
  }
  getAttribute(name) { return this.attributes[name] ?? null; }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  hasAttribute(name) { return name in this.attributes; }
  matches(selector) { return this.is.includes(selector); }
  closest(selector) { return this.is.includes(selector) ? this : this.found[selector] ?? null; }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  querySelectorAll(selector) { return [this.found[selector] ?? []].flat(); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  get childElementCount() { return this.children.length; }
  focus() { this.log.push("focus"); }
  click() { this.log.push("click"); }
  scrollIntoView() {}
  remove() { this.log.push("remove"); }
  showModal() { this.open = true; }
  // Tables.
  inserted(name) { const child = new Element(name); this.children.push(child); return child; }
  createTHead() { return this.inserted("thead"); }
  createTBody() { return this.inserted("tbody"); }
  createCaption() { return this.inserted("caption"); }
  insertRow() { return this.inserted("tr"); }
  get text() { return this.textContent ?? this.children.map((child) => child.text).join("|"); }
}

class Clock {
  now = Date.UTC(2026, 0, 1);
  timers = [];
  set = (run, wait = 0, every = 0) => {
    const timer = { run, due: this.now + wait, every };
    this.timers.push(timer);
    return timer;
  };
  clear = (timer) => (this.timers = this.timers.filter((one) => one !== timer));
  advance(milliseconds) {
    const end = this.now + milliseconds;
    for (;;) {
      const next = this.timers.filter((timer) => timer.due <= end).sort((a, b) => a.due - b.due)[0];
      if (!next) break;
      this.now = next.due;
      if (next.every) next.due += next.every;
      else this.clear(next);
      next.run();
    }
    this.now = end;
  }
}

// Runs `script`, or several in their order, and gives what a test needs of its world. `ids`: elements by id; `found`: by
// selector; `globals`: more.
export const load = (script, { ids = {}, found = {}, globals = {}, body = new Element("body") } = {}) => {
  const clock = new Clock(), document = new Listeners(), window = new Listeners();
  Object.assign(document, {
    hidden: false,
    documentElement: new Element("html"),
    body,
    getElementById: (id) => ids[id] ?? null,
    querySelector: (selector) => [found[selector] ?? []].flat()[0] ?? null,
    querySelectorAll: (selector) => [found[selector] ?? []].flat(),
    createElement: (name) => new Element(name),
    createRange: () => ({ selectNodeContents: (node) => document.fire("selected", { node }) }),
    dispatchEvent: (event) => document.fire(event.type),
    execCommand: () => false,
  });
  class FakeDate extends Date { static now() { return clock.now; } }
  Object.assign(window, {
    window, document, console, URL, URLSearchParams,
    Date: FakeDate,
    setTimeout: clock.set,
    clearTimeout: clock.clear,
    setInterval: (run, every) => clock.set(run, every, every),
    matchMedia: () => ({ matches: false, addEventListener: () => {} }),
    CSS: { supports: () => true },
    CustomEvent: class { constructor(type) { this.type = type; } },
    MutationObserver: class { observe() {} },
    localStorage: { getItem: () => null, setItem: () => {} },
    getComputedStyle: () => ({ getPropertyValue: (name) => name, fontFamily: "sans" }),
    getSelection: () => ({ removeAllRanges: () => {}, addRange: () => {} }),
    ...globals,
  });
  window.addEventListener = window.addEventListener.bind(window); // scripts call it bare
  const context = vm.createContext(window);
  for (const name of [script].flat()) vm.runInContext(readFileSync(new URL(name, SCRIPTS), "utf-8"), context, { filename: name });
  return { clock, document, window };
};

// An answer that is on its way has been dealt with.
export const settled = () => new Promise((resolve) => setImmediate(resolve));
