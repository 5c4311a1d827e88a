// charts.js: what is asked for, what is drawn of the answer, the same as a table.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Element, load, settled } from "./page.mjs";

const panel = (id, columns, dataset = {}) => {
  const plot = new Element("div", { attributes: { "aria-label": id }, offsetParent: true, handlers: {} });
  plot.on = (name, handler) => (plot.handlers[name] = [handler]);
  const found = {
    ".plot": plot,
    ".plot-table": new Element("div", { hidden: true }),
    ".plot-absent": new Element("p"),
    "[data-table]": new Element("button"),
    h2: new Element("h2", { textContent: id }),
  };
  const names = columns.map((column) => column.split("/").at(-1)).join("|");
  const colours = columns.map((_, at) => `--colour-${at}`).join(" ");
  return new Element("section", {
    found, dataset: { chart: id, kind: "line", unit: "", columns: columns.join(" "), names, colours, ...dataset },
  });
};

const body = (charts, more = {}) => ({ charts, after: 0, epoch: "", last: null, width: 1, seams: [], ...more });

// A page with these panels whose series come from `answers`, one after the other; `hold` keeps them back.
const page = (panels, answers, header = { step: "0", seam: "" }) => {
  const asked = [], drawn = {}, hovered = [], waiting = [];
  const state = { hold: false };
  const fetch = async (address) => {
    asked.push(address);
    if (state.hold) await new Promise((go) => waiting.push(go));
    return { ok: true, redirected: false, json: async () => structuredClone(answers.shift()) };
  };
  const Plotly = {
    react: (plot, data, layout) => {
      plot.classList.add("js-plotly-plot");
      drawn[panels.find((one) => one.found[".plot"] === plot).dataset.chart] = { data, layout };
    },
    Fx: { hover: (plot, { xval }) => hovered.push(xval), unhover: () => hovered.push("none") },
  };
  const root = new Element("div", { dataset: { series: "/series.json" }, found: { "[data-chart]": panels } });
  const ids = { charts: root, "live-header": { dataset: header } };
  return { ...load("charts.js", { ids, globals: { fetch, Plotly } }), asked, drawn, hovered, header, state, waiting };
};

// Arrays made in the script's context are of other classes than those of the test.
const plain = (value) => JSON.parse(JSON.stringify(value));

const REWARD = (steps, values) => ({ reward: { step: steps, reward: values } });

test("asks for all at first, and for what is new when the run has moved", async () => {
  const { asked, drawn, document, header } = page([panel("reward", ["reward"])], [
    body(REWARD([1, 2], [0.1, 0.2]), { last: 2 }),
    body(REWARD([3], [0.3]), { after: 2, last: 3 }),
  ]);
  await settled();
  header.step = "2";
  document.fire("cohort:live");
  await settled();
  assert.deepEqual(asked, ["/series.json?after=0&epoch="], "what is drawn is not asked for again");
  header.step = "3";
  document.fire("cohort:live");
  await settled();
  assert.equal(asked[1], "/series.json?after=2&epoch=");
  assert.deepEqual(drawn.reward.data[0].x, [1, 2, 3]);
  assert.equal(drawn.reward.layout.datarevision, 3, "plotly does not see arrays that grow in place");
});

test("steps that come while it asks are drawn too", async () => {
  const { asked, drawn, document, header, state, waiting } = page([panel("reward", ["reward"])], [
    body(REWARD([1], [0.1]), { last: 1 }),
    body(REWARD([2], [0.2]), { after: 1, last: 2 }),
    body(REWARD([3], [0.3]), { after: 2, last: 3 }),
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
  assert.deepEqual(drawn.reward.data[0].x, [1, 2, 3]);
});

test("a resume takes the charts back and shows the seam", async () => {
  const one = panel("reward", ["reward"]), why = "attempt 1 lost: not heard from";
  const { asked, drawn, document, header } = page([one], [
    body(REWARD([9, 10, 11, 12], [0.9, 1, 1.1, 1.2]), { last: 12 }),
    body(REWARD([9, 10, 11], [0.9, 1, 0.5]), { last: 11, epoch: "1:10", seams: [{ step: 10, attempt: 2, why }] }),
    body(REWARD([], []), { after: 11, epoch: "1:10", seams: [{ step: 10, attempt: 2, why }] }),
  ]);
  await settled();
  Object.assign(header, { step: "12", seam: "2:10" });
  document.fire("cohort:live");
  await settled();
  assert.equal(asked[1], "/series.json?after=12&epoch=", "as far as before, in another attempt");
  assert.deepEqual(drawn.reward.data[0].y, [0.9, 1, 0.5]);
  assert.deepEqual(drawn.reward.layout.shapes.map(({ x0 }) => x0), [10.5]);
  assert.deepEqual(drawn.reward.layout.annotations.map(({ text }) => text), ["attempt 2"]);
  assert.equal(one.found[".plot"].attributes["aria-label"], `reward; resumed from step 10, attempt 2 (${why})`);
  one.found["[data-table]"].fire("click");
  const [, rows] = one.found[".plot-table"].children[0].children;
  assert.deepEqual(rows.children.map((row) => row.text), ["11|0.5", `resumed from step 10, attempt 2 (${why})`, "10|1", "9|0.9"]);
});

test("a table has the numbers in four digits, newest first, and a dash where there is none", async () => {
  const one = panel("kl", ["kl", "kl/max"]);
  const { drawn } = page([one], [body({ kl: { step: [1, 2], kl: [-0.0123456, 1234.56], "kl/max": [null, 1e-7] } }, { last: 2 })]);
  await settled();
  one.found["[data-table]"].fire("click");
  const [head, rows] = one.found[".plot-table"].children[0].children;
  assert.equal(head.children[0].text, "step|kl|max");
  assert.deepEqual(rows.children.map((row) => row.text), ["2|1235|1e−7", "1|−0.01235|–"]);
  assert.equal(one.found["[data-table]"].textContent, "chart");
  drawn.kl = null;
  one.found["[data-table]"].fire("click");
  assert.ok(drawn.kl, "drawn again when it is a chart again");
});

test("an axis of tiny numbers has powers of ten and room for them", async () => {
  const { drawn } = page([panel("mismatch", ["mismatch"]), panel("entropy", ["entropy"])], [
    body({ mismatch: { step: [1], mismatch: [3e-7] }, entropy: { step: [1], entropy: [0.5] } }, { last: 1 }),
  ]);
  await settled();
  const { margin, yaxis } = drawn.mismatch.layout;
  assert.deepEqual([margin.l, yaxis.exponentformat], [74, "power"]);
  assert.deepEqual([drawn.entropy.layout.margin.l, drawn.entropy.layout.yaxis.exponentformat], [52, undefined]);
});

test("axes of shares end at 1, others begin at 0 where that says something", async () => {
  const panels = [panel("share", ["share"], { ceiling: "1.0", floor: "0" }), panel("time", ["time"], { floor: "0" })];
  const { drawn } = page(panels, [body({ share: { step: [1], share: [0.5] }, time: { step: [1], time: [2] } }, { last: 1, width: 5 })]);
  await settled();
  assert.equal(drawn.share.layout.yaxis.tickformat, ".0%");
  assert.equal(drawn.time.layout.yaxis.rangemode, "tozero");
  assert.match(drawn.time.layout.xaxis.title.text, /each 5/);
});

test("a band lies around its line, a stack holds every share", async () => {
  const panels = [panel("reward", ["reward", "std"], { kind: "band" }), panel("signal", ["right", "wrong"], { kind: "stack" })];
  const { drawn } = page(panels, [
    body({ reward: { step: [1, 2], reward: [0.5, 1], std: [0.25, null] }, signal: { step: [1], right: [0.75], wrong: [null] } }, { last: 2 }),
  ]);
  await settled();
  assert.deepEqual(plain(drawn.reward.data.slice(0, 3).map(({ y }) => y)), [[0.25, 1], [0.75, 1], [0.5, 1]]);
  assert.deepEqual(plain(drawn.signal.data.map(({ y, stackgroup }) => [y, stackgroup])), [[[0.75], "all"], [[0], "all"]]);
});

test("what no step reports is not promised any longer", async () => {
  const [known, absent] = [panel("reward", ["reward"]), panel("use", ["use"])];
  page([known, absent], [body({ ...REWARD([1], [1]), use: { step: [], use: [] } }, { last: 1 })]);
  await settled();
  assert.deepEqual([known, absent].map((one) => one.classList.contains("is-empty")), [false, true]);
  assert.equal(absent.found[".plot-absent"].textContent, "No step has reported it.");
  assert.equal(absent.found["[data-table]"].hidden, true);
});

test("one hover is on all charts, and the theme redraws them", async () => {
  const panels = [panel("a", ["a"]), panel("b", ["b"]), panel("c", ["c"])];
  const { drawn, hovered, document } = page(panels, [
    body({ a: { step: [1], a: [1] }, b: { step: [1], b: [1] }, c: { step: [1], c: [1] } }, { last: 1 }),
  ]);
  await settled();
  panels[0].found[".plot"].handlers.plotly_hover[0]({ points: [{ x: 1 }] });
  assert.deepEqual(hovered, [1, 1]);
  drawn.a = null;
  document.fire("cohort:theme");
  assert.ok(drawn.a);
});
