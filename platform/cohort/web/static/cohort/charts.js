// The charts of a run: fetches its series.json once and then what is new, draws what is in sight, and keeps zoom, axes,
// smoothing and hidden lines the same on all of them. What a chart shows stands in its panel's data attributes
// (cohort/web/runs/chart_list.py); how it is drawn, in plot.js; what
// a viewer chose, in the address (chart-view.js); the numbers and their table, in chart-series.js.
(() => {
  const root = document.getElementById("charts"), bar = document.getElementById("chart-bar");
  if (!root || !window.Plotly) return;
  const { words, traces, layout, image } = window.CohortPlot;
  const { nothing, append, axisOf, fill } = window.CohortSeries;
  const { read, write, flip, ALL } = window.CohortView;
  const view = read();
  write(view); // without what could not be read
  const header = () => document.getElementById("live-header")?.dataset ?? {};
  const status = document.getElementById("chart-status");
  let charts = [], whole = nothing(), part = null; // part: of the range that is zoomed into, where the whole is not exact
  let last = 0, epoch = "", loading = false, again = false, { seam } = header();

  const data = () => part ?? whole;
  const ranged = () => view.from !== null || view.to !== null;

  // ---------------------------------------------------------------- panels
  const adopt = (panel) => {
    const { dataset } = panel, plot = panel.querySelector(".plot");
    const chart = {
      panel, plot, id: dataset.chart, kind: dataset.kind, unit: dataset.unit, lines: JSON.parse(dataset.lines),
      floor: dataset.floor === undefined ? null : Number(dataset.floor), points: dataset.points !== undefined,
      ceiling: dataset.ceiling === undefined ? null : Number(dataset.ceiling), log: dataset.log !== undefined,
      title: panel.querySelector("h3").textContent, label: plot.getAttribute("aria-label"),
      table: panel.querySelector(".plot-table"), band: panel.querySelector("[data-band]"), seen: false, stale: true,
    };
    chart.bandName = chart.band?.textContent;
    charts.push(chart);
    const button = panel.querySelector("[data-table]"), axis = panel.querySelector("[data-axis]");
    button.addEventListener("click", () => {
      flip(view.table, chart.id, !view.table.has(chart.id));
      changed([chart]);
    });
    axis?.addEventListener("click", () => {
      flip(view.log, chart.id, !view.log.has(chart.id));
      changed([chart]);
    });
    for (const line of panel.querySelectorAll("[data-line]")) {
      line.addEventListener("click", () => {
        const key = `${chart.id}:${line.dataset.line}`;
        flip(view.hide, key, !view.hide.has(key));
        changed([chart]);
      });
    }
    panel.querySelector("[data-png]").addEventListener("click", () =>
      image(chart, data(), viewOf(chart), `${chart.id.replaceAll("/", "-")}.png`));
    observer.observe(panel);
  };
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.find(({ panel }) => panel === target);
      if (!chart) continue;
      chart.seen = isIntersecting;
      if (chart.seen && chart.stale && axis) show(chart);
    }
  }, { rootMargin: "200px" });
  const adoptGroup = (group) => {
    const usual = group.dataset.folded === undefined;
    group.open = usual !== view.fold.has(group.dataset.group);
    group.addEventListener("toggle", () => {
      flip(view.fold, group.dataset.group, group.open !== usual);
      write(view);
    });
  };

  // A metric that no panel draws yet: the page of now has one. Of each such name it is looked for once.
  const sought = new Set();
  const seek = async () => {
    const drawn = new Set(charts.flatMap(({ lines }) => lines.flatMap((line) => [...Object.keys(line.terms), line.spread, line.low, line.high])));
    const missing = Object.keys(whole.metrics).filter((name) => !drawn.has(name) && !sought.has(name));
    if (missing.length === 0) return;
    for (const name of missing) sought.add(name);
    const answer = await fetch(location.pathname, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    let before = bar;
    for (const group of fresh.querySelectorAll("#charts [data-group]")) {
      let place = document.getElementById(group.id);
      if (!place) {
        place = document.importNode(group, false);
        place.append(document.importNode(group.querySelector("summary"), true), document.importNode(group.querySelector(".charts"), false));
        before.after(place);
        adoptGroup(place);
      }
      before = place;
      const grid = place.querySelector(".charts");
      let previous = null;
      for (const panel of group.querySelectorAll("[data-chart]")) {
        const old = charts.find(({ id }) => id === panel.dataset.chart);
        let now = old?.panel;
        if (!old || old.panel.dataset.lines !== panel.dataset.lines) {
          now = document.importNode(panel, true);
          if (old) {
            charts = charts.filter((chart) => chart !== old);
            Plotly.purge(old.plot);
            old.panel.replaceWith(now);
          } else if (previous) previous.after(now);
          else grid.prepend(now);
          adopt(now);
        }
        previous = now;
      }
    }
    document.getElementById("charts-empty").hidden = charts.length > 0;
    draw();
  };

  // ---------------------------------------------------------------- data
  const get = async (query) => {
    const answer = await fetch(`${root.dataset.series}?${new URLSearchParams(query)}`, { headers: { Accept: "application/json" } });
    // Signed out: the page itself goes to the sign-in. 204: no step since the last one.
    return answer.ok && !answer.redirected && answer.status !== 204 ? answer.json() : null;
  };
  const load = async () => {
    if (loading) return void (again = true); // what is on its way may be from before
    loading = true;
    try {
      const reply = await get({ after: last, epoch });
      if (reply === null) return;
      const anew = reply.after === 0; // the first time, after a resume from an earlier step, or when much has come
      const seamed = reply.seams.length !== whole.seams.length;
      if (anew) [whole, part] = [reply, null];
      else append(whole, reply);
      ({ epoch } = reply);
      whole.seams = reply.seams;
      if (anew || reply.last !== null) last = reply.last ?? 0;
      if (anew || seamed || reply.last !== null) draw();
      if (anew && ranged()) await exact();
      await seek();
    } finally {
      loading = false;
      if (again) {
        again = false;
        load();
      }
    }
  };
  // The steps of the range one by one, or in narrower stretches, unless they are there already.
  const exact = async () => {
    const { from, to } = view;
    part = null;
    if (!ranged() || whole.width === 1) return;
    const reply = await get({ ...(from === null ? {} : { from }), ...(to === null ? {} : { to }) });
    if (reply === null || view.from !== from || view.to !== to) return; // another range has been chosen meanwhile
    part = reply;
    draw();
  };

  // ---------------------------------------------------------------- axes
  let axis = null; // of the data that is drawn; none before there is a step
  const rangeOf = ({ step }, { xs, axis: { name } }) => {
    if (!ranged() || step.length === 0) return null;
    const from = view.from ?? 1, to = view.to ?? Math.max(step.at(-1), from);
    if (name === "step") return from === to ? [from - 0.5, to + 0.5] : [from, to];
    const first = Math.max(step.findIndex((each) => each >= from), 0), end = step.findLastIndex((each) => each <= to);
    return [xs[first], xs[Math.max(end, first)]];
  };
  const isLog = (chart) => chart.kind !== "stack" && view.log.has(chart.id) !== (chart.log || view.log.has(ALL));
  const viewOf = (chart) => ({
    ...axis, smooth: view.smooth, log: isLog(chart),
    hidden: new Set(chart.lines.map(({ name }) => name).filter((name) => view.hide.has(`${chart.id}:${name}`))),
  });

  // ---------------------------------------------------------------- drawing
  // What its buttons say, in sight or not.
  const mark = (chart) => {
    const { panel } = chart, table = view.table.has(chart.id);
    panel.classList.toggle("is-table", table);
    chart.table.hidden = !table;
    panel.querySelector("[data-table]").setAttribute("aria-pressed", String(table));
    panel.querySelector("[data-axis]")?.setAttribute("aria-pressed", String(isLog(chart)));
    for (const line of panel.querySelectorAll("[data-line]")) {
      line.setAttribute("aria-pressed", String(!view.hide.has(`${chart.id}:${line.dataset.line}`)));
    }
  };
  const show = (chart) => {
    const { panel, plot } = chart, shown = data();
    chart.stale = false;
    if (chart.band && chart.lines.some(({ spread }) => spread)) {
      chart.band.textContent = shown.width > 1 ? "lowest to highest" : chart.bandName;
    }
    const query = new URLSearchParams();
    for (const name of new Set(chart.lines.flatMap((line) => [...Object.keys(line.terms), line.spread, line.low, line.high]))) {
      if (name) query.append("metric", name);
    }
    for (const name of ["from", "to"]) if (view[name] !== null) query.set(name, view[name]);
    panel.querySelector("[data-csv]").href = `${root.dataset.csv}?${query}`;
    plot.setAttribute("aria-label", [chart.label, ...shown.seams.map(words)].join("; "));
    if (view.table.has(chart.id)) return fill(chart, shown, view, groupsOf);
    const first = !plot.classList.contains("js-plotly-plot"), seen = viewOf(chart);
    Plotly.react(plot, traces(chart, shown, seen), layout(chart, shown, seen), { displayModeBar: false, responsive: true, doubleClick: false, showTips: false });
    if (first) link(chart);
  };
  const draw = (some = charts) => {
    if (whole.step.length === 0) return;
    axis = axisOf(data(), whole, view.x, root.dataset.completions);
    axis.range = rangeOf(data(), axis);
    for (const chart of some) {
      chart.stale = true;
      mark(chart);
    }
    for (const chart of some) if (chart.seen) show(chart);
    say();
  };
  const say = () => {
    const { width, step } = data(), count = (value) => value.toLocaleString("en");
    const range = ranged() ? `Steps ${count(view.from ?? 1)} to ${count(Math.max(view.to ?? last, view.from ?? 1))}` : `${count(step.at(-1) ?? 0)} steps`;
    const drawn = width > 1 ? `the last of each ${count(width)}, shaded from their lowest to their highest. Drag across a chart for exact steps` : "each drawn";
    const smooth = view.smooth ? ` Lines are smoothed (${view.smooth}) over the points drawn, the raw ones faint; stacks and evaluations are not.` : "";
    const log = charts.some(isLog) ? " Logarithmic axes leave out values of 0 and below." : "";
    status.textContent = `${range}: ${drawn}.${smooth}${log}`;
    bar.hidden = false;
  };
  const changed = (some) => {
    write(view);
    draw(some);
  };

  // ---------------------------------------------------------------- one hover, zoom and click on all charts
  let linked = false;
  const together = (own, act) => {
    if (linked) return;
    linked = true;
    for (const { plot, seen } of charts) if (plot !== own && seen && plot.classList.contains("js-plotly-plot") && plot.offsetParent) act(plot);
    linked = false;
  };
  const zoom = (from, to) => {
    [view.from, view.to] = [from, to];
    part = null;
    showRange();
    changed();
    return exact();
  };
  const groupsOf = (step) => `${root.dataset.groups}?step=${step}`;
  const link = ({ plot }) => {
    plot.on("plotly_hover", (event) => together(plot, (other) => Plotly.Fx.hover(other, { xval: event.points[0].x })));
    plot.on("plotly_unhover", () => together(plot, (other) => Plotly.Fx.unhover(other)));
    plot.on("plotly_relayout", (event) => {
      const [low, high] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (low === undefined) return;
      const { step } = data(), inside = step.map((_, at) => at).filter((at) => axis.xs[at] >= low && axis.xs[at] <= high);
      if (view.x === "step") {
        const first = Math.max(Math.ceil(low), 1);
        zoom(first, Math.max(Math.floor(high), first));
      } else if (inside.length) zoom((step[inside[0] - 1] ?? step[0] - 1) + 1, step[inside.at(-1)]);
      else draw();
    });
    plot.on("plotly_doubleclick", () => zoom(null, null));
    plot.on("plotly_click", ({ event, points }) => {
      if (!root.dataset.groups) return; // of a kind that samples none
      const address = groupsOf(data().step[points[0].pointIndex]);
      if (event?.ctrlKey || event?.metaKey) open(address);
      else location.assign(address);
    });
  };

  // ---------------------------------------------------------------- controls
  const { x, smooth, log, from, to, reset, copy } = bar.elements;
  const showRange = () => {
    from.value = view.from ?? "";
    to.value = view.to ?? "";
    reset.hidden = !ranged();
  };
  const showControls = () => {
    x.value = view.x;
    smooth.value = view.smooth;
    bar.querySelector("output").textContent = String(view.smooth);
    log.checked = view.log.has(ALL);
    showRange();
  };
  bar.addEventListener("submit", (event) => event.preventDefault());
  x.addEventListener("change", () => {
    view.x = x.value;
    changed();
  });
  smooth.addEventListener("input", () => {
    view.smooth = Number(smooth.value);
    bar.querySelector("output").textContent = String(view.smooth);
    changed();
  });
  log.addEventListener("change", () => {
    flip(view.log, ALL, log.checked);
    changed();
  });
  for (const input of [from, to]) {
    input.addEventListener("change", () => {
      const [first, end] = [from, to].map(({ value }) => (value ? Number(value) : null));
      to.setCustomValidity(first !== null && end !== null && first > end ? "The last step is before the first." : "");
      if (from.reportValidity() && to.reportValidity()) zoom(first, end);
    });
  }
  reset.addEventListener("click", () => zoom(null, null));
  copy.addEventListener("click", async () => {
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    copy.textContent = copied ? "Link copied" : "The link is the page’s address";
    setTimeout(() => (copy.textContent = "Copy link"), 2000);
  });

  showControls();
  root.querySelectorAll("[data-group]").forEach(adoptGroup);
  root.querySelectorAll("[data-chart]").forEach(adopt);
  document.addEventListener("cohort:theme", () => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  document.addEventListener("cohort:live", () => {
    const shown = header();
    // After a resume the run is further back than what is drawn, or has caught up by now with other numbers.
    if (Number(shown.step ?? 0) === last && shown.seam === seam) return;
    ({ seam } = shown);
    load();
  });
  load();
})();
