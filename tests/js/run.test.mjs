// run.js: how often a page polls, times that grow by themselves, dialogs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Element, load } from "./page.mjs";

const polled = () => {
  const element = new Element("div", { id: "live", attributes: { "data-poll": "" } });
  const asked = [];
  const globals = { htmx: { trigger: (target, name) => asked.push(`${target.id} ${name}`) } };
  const page = load("run.js", { ids: { live: element }, found: { "[data-poll]": element }, globals });
  const answer = (status, { date = null, verb = "get" } = {}) => page.document.fire("htmx:afterRequest", {
    detail: { requestConfig: { elt: { id: "live" }, verb }, xhr: { status, getResponseHeader: () => date } },
  });
  // Milliseconds until it is asked again; Infinity when it is not within an hour.
  const wait = () => {
    const before = asked.length;
    for (let passed = 0; passed < 3_600_000; passed += 100) {
      if (asked.length > before) return passed;
      page.clock.advance(100);
    }
    return Infinity;
  };
  return { ...page, element, asked, answer, wait };
};

test("polls every 2 s while something changes, and slower up to 8 s while nothing does", () => {
  const { answer, wait, asked } = polled();
  assert.equal(wait(), 2000);
  assert.equal(asked[0], "live cohort:poll");
  const waits = [];
  for (let turn = 0; turn < 6; turn++) {
    answer(204);
    waits.push(wait());
  }
  assert.deepEqual(waits, [2800, 4000, 5500, 7700, 8000, 8000]);
  answer(200);
  assert.equal(wait(), 2000);
});

test("backs off to 30 s in trouble", () => {
  const { answer, wait } = polled();
  wait();
  const waits = [];
  for (let turn = 0; turn < 5; turn++) {
    answer(0);
    waits.push(wait());
  }
  assert.deepEqual(waits, [4000, 8000, 16000, 30000, 30000]);
});

test("ends where nothing polls any more", () => {
  const { answer, element, wait } = polled();
  wait();
  element.removeAttribute("data-poll");
  answer(286);
  assert.equal(wait(), Infinity);
});

test("asks for nothing while nobody looks, and at once when somebody does", () => {
  const { document, answer, wait } = polled();
  document.hidden = true;
  assert.equal(wait(), Infinity);
  document.hidden = false;
  document.fire("visibilitychange");
  assert.ok(wait() <= 100);
  answer(200, { verb: "post" });
  assert.equal(wait(), Infinity, "a post is no answer to a poll");
});

test("an answer with news is told to the charts, an idle one is not", () => {
  const { document, answer } = polled();
  let live = 0;
  document.addEventListener("cohort:live", () => live++);
  for (const status of [200, 204, 286, 500]) answer(status);
  assert.equal(live, 2);
});

const NB = "\u00a0";
const at = (page, seconds) => new Date(page.clock.now + seconds * 1000).toISOString();

test("times grow in the words of the server's filters", () => {
  const ago = new Element("time", { dataset: { ago: "" } }), lasting = new Element("time", { dataset: { ago: "for" } });
  const until = new Element("time", { dataset: {} });
  const page = load("run.js", { found: { "time[data-ago]": [ago, lasting], "time[data-until]": until } });
  for (const [passed, text, span] of [
    [0, "now", `0${NB}s`],
    [3, `3${NB}s ago`, `3${NB}s`],
    [330, `5${NB}min ago`, `5${NB}min 30${NB}s`],
    [7300, `2${NB}h ago`, `2${NB}h 1${NB}min`],
    [200000, `2${NB}d ago`, `2${NB}d 7${NB}h`],
  ]) {
    ago.dateTime = lasting.dateTime = at(page, 1 - passed);
    until.dateTime = at(page, 1 + passed);
    page.clock.advance(1000);
    assert.deepEqual([ago.textContent, lasting.textContent, until.textContent], [text, span, span]);
  }
});

test("a browser's wrong clock is set right by the server's", () => {
  const ago = new Element("time", { dataset: { ago: "" } });
  const page = load("run.js", { found: { "time[data-ago]": ago } });
  const server = new Date(page.clock.now - 600_000);
  page.document.fire("htmx:afterRequest", {
    detail: { requestConfig: { elt: {} }, xhr: { status: 200, getResponseHeader: () => server.toUTCString() } },
  });
  ago.dateTime = server.toISOString();
  page.clock.advance(5000);
  assert.equal(ago.textContent, `5${NB}s ago`);
});

test("a message goes when the run's state has changed", () => {
  const dataset = { state: "queued" }, box = new Element();
  const message = new Element("p", { parentElement: box });
  box.children = [message];
  const found = { ".messages .success": message };
  const { document } = load("run.js", { ids: { "live-header": { dataset } }, found });
  document.fire("htmx:afterSettle");
  assert.deepEqual(box.log, []);
  dataset.state = "training";
  document.fire("htmx:afterSettle");
  assert.deepEqual(box.log, ["remove"]);
});

test("a form of its own opens in a dialog, or as its page when it does not come", async () => {
  for (const comes of [true, false]) {
    const dialog = new Element("dialog"), visited = [];
    const globals = {
      htmx: { ajax: async () => void (comes && dialog.append(new Element("form"))) },
      location: { assign: (address) => visited.push(address) },
    };
    const { document } = load("run.js", { ids: { dialog }, globals });
    const link = new Element("a", { is: ["a[data-dialog]"], attributes: { href: "retry/" }, href: "/retry/" });
    assert.ok(!document.fire("click", { target: link, ctrlKey: true }).prevented, "a new tab is a page");
    assert.ok(document.fire("click", { target: link }).prevented);
    await null;
    await null;
    assert.deepEqual([dialog.open ?? false, visited], comes ? [true, []] : [false, ["/retry/"]]);
  }
});
