// The charts of a run: what is asked for, what is drawn of the answer, the same as a table, and the view in the address.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Element, load, settled } from "./page.mjs";

const lineOf = (metric, more = {}) => ({ name: metric.split("/").at(-1), terms: { [metric]: 1 }, colour: "--accent", spread: "", low: "", high: "", ...more });

const panel = (id, lines, dataset = {}) => {
  const plot = new Element("div", { attributes: { "aria-label": id }, offsetParent: true, handlers: {} });
  plot.on = (name, handler) => (plot.handlers[name] = [handler]);
  const toggles = lines.length > 1 ? lines.map(({ name }) => new Element("button", { dataset: { line: name } })) : [];
  const found = {
    ".plot": plot, ".plot-table": new Element("div", { hidden: true }), h3: new Element("h3", { textContent: id }),
    "[data-table]": new Element("button"), "[data-axis]": new Element("button"), "[data-png]": new Element("button"),
    "[data-csv]": new Element("a"), "[data-line]": toggles,
    ...(dataset.band ? { "[data-band]": new Element("span", { textContent: dataset.band }) } : {}),
  };
  return new Element("section", { found, dataset: { chart: id, kind: "line", unit: "", lines: JSON.stringify(lines), ...dataset } });
};
const one = (metric, dataset) => panel(metric, [lineOf(metric)], dataset);

const body = (step, metrics, more = {}) => ({
  step, at: step.map((each) => 1000 + 60 * each), started: 1000, metrics, low: {}, high: {}, after: 0, epoch: "",
  last: step.at(-1) ?? null, width: 1, seams: [], ...more,
});

// A page with these panels whose series come from `answers`, one after the other; `hold` keeps them back.
const page = (panels, answers, { header = { step: "0", seam: "" }, search = "", groups = [] } = {}) => {
  const asked = [], drawn = {}, hovered = [], waiting = [], opened = [], addresses = [], observed = [];
  const state = { hold: false };
  const fetch = async (address) => {
    asked.push(address);
    if (state.hold) await new Promise((go) => waiting.push(go));
    const answer = answers.shift();
    return { ok: true, redirected: false, status: 200, json: async () => structuredClone(answer), text: async () => answer };
  };
  const Plotly = {
    react: (plot, data, layout) => {
      plot.classList.add("js-plotly-plot");
      drawn[panels.find(({ found }) => found[".plot"] === plot).dataset.chart] = { data, layout };
    },
    Fx: { hover: (plot, { xval }) => hovered.push(xval), unhover: () => hovered.push("none") },
  };
  class IntersectionObserver {
    constructor(seen) { this.seen = seen; }
    observe(target) {
      observed.push(target);
      this.seen([{ target, isIntersecting: !target.below }]);
    }
  }
  const root = new Element("div", {
    dataset: { series: "/series.json", csv: "/metrics.csv", groups: "/groups/", completions: "8" },
    found: { "[data-chart]": panels, "[data-group]": groups },
  });
  const names = ["x", "smooth", "log", "from", "to", "reset", "copy"];
  const elements = Object.fromEntries(names.map((name) => [name, new Element("input", { value: "", reportValidity: () => true, setCustomValidity: () => {} })]));
  const bar = new Element("form", { elements, found: { output: new Element("output") } });
  const status = new Element("p");
  const ids = { charts: root, "chart-bar": bar, "chart-status": status, "live-header": { dataset: header }, "charts-empty": new Element("p") };
  const location = { search, href: `https://cohort.test/p/ours/runs/1/${search}`, pathname: "/p/ours/runs/1/", assign: (address) => opened.push(address) };
  const history = { state: null, replaceState: (kept, title, address) => addresses.push(address.search) };
  const DOMParser = class { parseFromString() { return { querySelectorAll: () => [] }; } };
  const globals = { fetch, Plotly, IntersectionObserver, location, history, DOMParser, open: (address) => opened.push(`new ${address}`) };
  const scripts = ["plot.js", "chart-series.js", "chart-view.js", "charts.js"];
  return { ...load(scripts, { ids, globals }), asked, drawn, hovered, header, state, waiting, opened, addresses, observed, elements, status };
};

// Arrays made in the script's context are of other classes than those of the test.
const plain = (value) => JSON.parse(JSON.stringify(value));

test("asks for all at first, and for what is new when the run has moved", async () => {
  const { asked, drawn, document, header } = page([one("reward"), one("kl")], [
    body([1, 2], { reward: [0.1, 0.2], kl: [1, 2] }),
    body([3], { reward: [0.3], entropy: [1] }, { after: 2 }),
    "",
  ]);
  await settled();
  const { datarevision } = drawn.reward.layout;
  header.step = "2";
  document.fire("cohort:live");
  await settled();
  assert.deepEqual(asked, ["/series.json?after=0&epoch="], "what is drawn is not asked for again");
  header.step = "3";
  document.fire("cohort:live");
  await settled();
  assert.equal(asked[1], "/series.json?after=2&epoch=");
  assert.deepEqual(plain(drawn.reward.data[0].x), [1, 2, 3]);
  assert.deepEqual(plain(drawn.kl.data[0].y), [1, 2, null], "absent is not 0");
  assert.notEqual(drawn.reward.layout.datarevision, datarevision, "plotly does not see arrays that grow in place");
  assert.equal(asked[2], "/p/ours/runs/1/", "no panel draws the entropy yet");
  assert.equal(asked.length, 3);
});

test("steps that come while it asks are drawn too", async () => {
  const { asked, drawn, document, header, state, waiting } = page([one("reward")], [
    body([1], { reward: [0.1] }),
    body([2], { reward: [0.2] }, { after: 1 }),
    body([3], { reward: [0.3] }, { after: 2 }),
  ]);
  await settled();
  state.hold = true;
  header.step = "2";
  document.fire("cohort:live");
  header.step = "3";
  document.fire("cohort:live");
  state.hold = false;
  waiting.shift()();
  await settled();
  assert.equal(asked.length, 3);
  assert.deepEqual(plain(drawn.reward.data[0].x), [1, 2, 3]);
});

test("a resume takes the charts back and shows the seam", async () => {
  const reward = one("reward"), why = "attempt 1 lost: not heard from", seams = [{ step: 10, attempt: 2, why }];
  const { asked, drawn, document, header } = page([reward], [
    body([9, 10, 11, 12], { reward: [0.9, 1, 1.1, 1.2] }),
    body([9, 10, 11], { reward: [0.9, 1, 0.5] }, { epoch: "1:10", seams }),
    body([], {}, { after: 11, epoch: "1:10", seams }),
  ]);
  await settled();
  Object.assign(header, { step: "12", seam: "2:10" });
  document.fire("cohort:live");
  await settled();
  assert.equal(asked[1], "/series.json?after=12&epoch=", "as far as before, in another attempt");
  assert.deepEqual(plain(drawn.reward.data[0].y), [0.9, 1, 0.5]);
  assert.deepEqual(plain(drawn.reward.layout.shapes.map(({ x0 }) => x0)), [10.5]);
  assert.deepEqual(plain(drawn.reward.layout.annotations.map(({ text }) => text)), ["attempt 2"]);
  assert.equal(reward.found[".plot"].attributes["aria-label"], `reward; resumed from step 10, attempt 2 (${why})`);
  reward.found["[data-table]"].fire("click");
  const rows = reward.found[".plot-table"].children[0].children.at(-1);
  assert.deepEqual(rows.children.map((row) => row.text), ["11|0.5", `resumed from step 10, attempt 2 (${why})`, "10|1", "9|0.9"]);
});

test("a table has the numbers in four digits, newest first, a dash where there is none, and leads to the groups", async () => {
  const kl = panel("kl", [lineOf("kl"), lineOf("kl/max")]);
  const { drawn, addresses } = page([kl], [body([1, 2, 3], { kl: [-0.0123456, 1234.56, null], "kl/max": [null, 1e-7, null] })]);
  await settled();
  kl.found["[data-table]"].fire("click");
  const [, head, rows] = kl.found[".plot-table"].children[0].children;
  assert.equal(head.children[0].text, "step|kl|max");
  assert.deepEqual(rows.children.map((row) => row.text), ["2|1235|1e−7", "1|−0.01235|–"], "step 3 has neither");
  assert.equal(rows.children[0].children[0].children[0].href, "/groups/?step=2");
  assert.equal(kl.found["[data-table]"].attributes["aria-pressed"], "true");
  assert.equal(addresses.at(-1), "?table=kl");
  drawn.kl = null;
  kl.found["[data-table]"].fire("click");
  assert.ok(drawn.kl, "drawn again when it is a chart again");
});

test("an axis of tiny numbers has powers of ten and room for them", async () => {
  const { drawn } = page([one("mismatch"), one("entropy"), one("none")], [body([1], { mismatch: [3e-7], entropy: [0.5], none: [0] })]);
  await settled();
  const { margin, yaxis } = drawn.mismatch.layout;
  assert.deepEqual([margin.l, yaxis.exponentformat], [74, "power"]);
  assert.deepEqual([drawn.entropy.layout.margin.l, drawn.entropy.layout.yaxis.exponentformat], [52, undefined]);
  assert.equal(drawn.none.layout.margin.l, 52);
});

test("a stack of shares ends at 1, lines begin at 0 where that says something", async () => {
  const panels = [one("share", { kind: "stack", ceiling: "1.0", floor: "0" }), one("time", { floor: "0" }), one("reward")];
  const { drawn } = page(panels, [body([1], { share: [0.5], time: [2], reward: [1] })]);
  await settled();
  assert.equal(drawn.share.layout.yaxis.tickformat, ".0%");
  assert.deepEqual([drawn.time, drawn.reward].map(({ layout }) => layout.yaxis.rangemode), ["tozero", undefined]);
});

test("a line is the sum of its terms, a band lies around it, a stack holds every share", async () => {
  const rest = { name: "rest", terms: { "": 1, right: -1, wrong: -1 }, colour: "--muted" };
  const panels = [
    panel("reward", [lineOf("reward", { spread: "std" })], { band: "± spread" }),
    panel("signal", [lineOf("right"), lineOf("wrong"), rest], { kind: "stack", ceiling: "1.0" }),
    panel("shaping", [{ name: "rest", terms: { reward: 1, paid: -2 }, colour: "--muted" }]),
    panel("length", [lineOf("length", { low: "min", high: "max" })]),
  ];
  const { drawn } = page(panels, [
    body([1, 2], { reward: [0.5, 1], std: [0.25, null], right: [0.25, null], wrong: [0.5, null], paid: [0.125, null], length: [5, 6], min: [1, 2], max: [9, 9] }),
  ]);
  await settled();
  assert.deepEqual(plain(drawn.reward.data.slice(0, 3).map(({ y }) => y)), [[0.25, 1], [0.75, 1], [0.5, 1]]);
  assert.deepEqual(plain(drawn.signal.data.map(({ y, stackgroup }) => [y, stackgroup])), [[[0.25, 0], "all"], [[0.5, 0], "all"], [[0.25, 0], "all"]]);
  assert.deepEqual(plain(drawn.shaping.data[0].y), [0.25, null]);
  assert.deepEqual(plain(drawn.length.data.slice(0, 2).map(({ y }) => y)), [[1, 2], [9, 9]]);
});

test("joined steps are shaded from lowest to highest, and a range of them is fetched exactly", async () => {
  const reward = panel("reward", [lineOf("reward", { spread: "std" })], { band: "± spread" });
  const { asked, drawn, addresses, elements, status } = page([reward], [
    body([5, 10, 15], { reward: [1, 2, 3], std: [1, 1, 1] }, { width: 5, low: { reward: [0, 1, 2] }, high: { reward: [3, 4, 5] } }),
    body([6, 7, 8], { reward: [1.5, 1.25, 4], std: [1, 1, 1] }),
  ]);
  await settled();
  assert.deepEqual(plain(drawn.reward.data.slice(0, 3).map(({ y }) => y)), [[0, 1, 2], [3, 4, 5], [1, 2, 3]]);
  assert.equal(reward.found["[data-band]"].textContent, "lowest to highest");
  assert.match(status.textContent, /the last of each 5/);
  reward.found[".plot"].handlers.plotly_relayout[0]({ "xaxis.range[0]": 5.5, "xaxis.range[1]": 8.9 });
  await settled();
  assert.equal(asked[1], "/series.json?from=6&to=8");
  assert.deepEqual(plain(drawn.reward.data[2].y), [1.5, 1.25, 4]);
  assert.deepEqual(plain(drawn.reward.layout.xaxis.range), [6, 8]);
  assert.equal(reward.found["[data-band]"].textContent, "± spread");
  assert.equal(status.textContent, "Steps 6 to 8: each drawn.");
  assert.equal(addresses.at(-1), "?from=6&to=8");
  assert.equal(reward.found["[data-csv]"].href, "/metrics.csv?metric=reward&metric=std&from=6&to=8");
  elements.reset.fire("click");
  assert.deepEqual(plain(drawn.reward.data[2].y), [1, 2, 3]);
  assert.equal(drawn.reward.layout.xaxis.autorange, true);
  assert.equal(addresses.at(-1), "");
});

test("a range that is known exactly is not fetched, on any axis", async () => {
  const { asked, drawn, elements, addresses } = page([one("reward")], [body([1, 2, 3, 4], { reward: [1, 2, 3, 4], num_tokens: [10, 20, 40, 80] })], { search: "?x=tokens" });
  await settled();
  assert.deepEqual(plain(drawn.reward.data[0].x), [10, 20, 40, 80]);
  elements.from.value = "2";
  elements.to.value = "3";
  elements.to.fire("change");
  await settled();
  assert.equal(asked.filter((address) => address.startsWith("/series")).length, 1);
  assert.deepEqual(plain(drawn.reward.layout.xaxis.range), [20, 40]);
  assert.equal(addresses.at(-1), "?x=tokens&from=2&to=3");
  for (const [chosen, xs] of [["samples", [8, 16, 24, 32]], ["time", [1, 2, 3, 4]], ["step", [1, 2, 3, 4]]]) {
    elements.x.value = chosen;
    elements.x.fire("change");
    assert.deepEqual(plain(drawn.reward.data[0].x), xs, chosen);
  }
});

test("a view in the address is the view that is drawn", async () => {
  const panels = [panel("signal", [lineOf("right"), lineOf("wrong")], { kind: "stack" }), one("kl"), one("loss"), one("entropy", { log: "" })];
  const folded = [new Element("details", { dataset: { group: "time" }, open: true }), new Element("details", { dataset: { group: "other", folded: "" } })];
  const search = "?smooth=0.5&log=kl&log=entropy&hide=signal%3Aright&fold=time&fold=other&table=loss&kept=1";
  const { drawn, elements, addresses } = page(panels, [body([1, 2], { right: [0.5, 0.5], wrong: [0.25, 0.5], kl: [4, 8], loss: [1, 2], entropy: [1, 2] })], { search, groups: folded });
  await settled();
  assert.equal(drawn.signal.data.length, 1);
  assert.deepEqual(plain(drawn.kl.data[1].y), [4, 5 / 0.75], "the start is corrected: (0.25 · 4 + 0.5 · 8) / 0.75");
  assert.deepEqual(plain(drawn.kl.data[0].y), [4, 8], "the raw line stays, faint");
  assert.deepEqual(plain(["kl", "entropy"].map((id) => drawn[id].layout.yaxis.type)), ["log", null], "an own chart's log axis is turned off");
  assert.equal(drawn.loss, undefined, "shown as a table");
  assert.deepEqual(folded.map(({ open }) => open), [false, true]);
  elements.log.checked = true;
  elements.log.fire("change");
  assert.equal(new URLSearchParams(addresses.at(-1)).toString(), new URLSearchParams(`?kept=1&smooth=0.5&log=kl&log=entropy&log=*&hide=signal:right&fold=time&fold=other&table=loss`).toString());
  panels[0].found["[data-line]"][0].fire("click");
  assert.equal(drawn.signal.data.length, 2);
});

test("what is out of sight is drawn when it comes into sight", async () => {
  const below = Object.assign(one("kl"), { below: true });
  const { drawn } = page([one("reward"), below], [body([1], { reward: [1], kl: [1] })]);
  await settled();
  assert.deepEqual(Object.keys(drawn), ["reward"]);
});

test("one hover is on all charts, a click opens the step's groups, and the theme redraws them", async () => {
  const panels = [one("a"), one("b"), one("c")];
  const { drawn, hovered, opened, document } = page(panels, [body([7], { a: [1], b: [1], c: [1] })]);
  await settled();
  const { handlers } = panels[0].found[".plot"];
  handlers.plotly_hover[0]({ points: [{ x: 7 }] });
  assert.deepEqual(hovered, [7, 7]);
  handlers.plotly_click[0]({ points: [{ pointIndex: 0 }] });
  handlers.plotly_click[0]({ points: [{ pointIndex: 0 }], event: { ctrlKey: true } });
  assert.deepEqual(opened, ["/groups/?step=7", "new /groups/?step=7"]);
  drawn.a = null;
  document.fire("cohort:theme");
  assert.ok(drawn.a);
});
