// Draws the charts of a run from its series.json, adds new points while the run lives, follows the theme.
// What each chart shows stands in its panel's data attributes (cohort/web/runs/charts.py); nothing is decided here.
(() => {
  const root = document.getElementById("charts");
  if (!root || !window.Plotly) return;
  const panels = [...root.querySelectorAll("[data-chart]")].map((panel) => ({
    panel,
    id: panel.dataset.chart,
    kind: panel.dataset.kind,
    unit: panel.dataset.unit,
    columns: panel.dataset.columns.split(" "),
    names: panel.dataset.names.split("|"),
    colours: panel.dataset.colours.split(" "),
    plot: panel.querySelector(".plot"),
    label: panel.querySelector(".plot").getAttribute("aria-label"),
    table: panel.querySelector(".plot-table"),
    button: panel.querySelector("[data-table]"),
    points: { step: [] },
  }));
  const header = () => document.getElementById("live-header")?.dataset ?? {};
  let last = 0, epoch = "", width = 1, seams = [], loading = false, again = false, { seam } = header();

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => (value === null || value === undefined ? "–" : String(+value.toPrecision(4)).replace("-", "−"));

  const words = ({ step, attempt, why }) =>
    `resumed from ${step ? `step ${step}` : "the evaluation before training"}, attempt ${attempt} (${why})`;

  // ---------------------------------------------------------------- data
  const load = async () => {
    if (loading) return void (again = true); // what is on its way may be from before
    loading = true;
    try {
      const query = new URLSearchParams({ after: last, epoch });
      const answer = await fetch(`${root.dataset.series}?${query}`, { headers: { Accept: "application/json" } });
      if (!answer.ok || answer.redirected) return; // signed out: the page itself goes to the sign-in
      if (answer.status === 204) return; // no step since the last one
      const reply = await answer.json();
      const anew = reply.after === 0; // the first time, after a resume from an earlier step, or when much has come
      for (const chart of panels) {
        const fresh = reply.charts[chart.id];
        if (anew) chart.points = fresh;
        else for (const name of Object.keys(fresh)) chart.points[name].push(...fresh[name]);
      }
      if (anew) ({ width } = reply);
      const seamed = reply.seams.length !== seams.length;
      ({ epoch, seams } = reply);
      if (anew || seamed || reply.last !== null) draw();
      if (anew || reply.last !== null) last = reply.last ?? 0;
    } finally {
      loading = false;
      if (again) {
        again = false;
        load();
      }
    }
  };

  // ---------------------------------------------------------------- drawing
  const line = (x, y, colour, more = {}) => ({
    type: "scatter", mode: "lines", x, y, line: { color: colour, width: 2 }, ...more,
  });
  const newestPoint = (x, y, colour) => ({
    type: "scatter", mode: "markers", x: x.slice(-1), y: y.slice(-1), hoverinfo: "skip",
    marker: { color: colour, size: 7, line: { color: css("--panel"), width: 2 } },
  });
  const traces = ({ panel, kind, columns, names, colours, points }) => {
    const x = points.step, y = points[columns[0]], colour = css(colours[0]);
    if (kind === "stack") {
      const shares = panel.dataset.ceiling !== undefined;
      return columns.map((column, place) => line(x, points[column].map((value) => value ?? 0), css(colours[place]), {
        stackgroup: "all", fillcolor: css(colours[place]) + "b3", line: { width: 0, color: css(colours[place]) },
        hovertemplate: `${names[place]} ${shares ? "%{y:.0%}" : "%{y:.3~g}"}<extra></extra>`,
      }));
    }
    const drawn = [];
    let hover = `${names[0]} %{y:.4~g}<extra></extra>`;
    const more = {};
    if (kind === "band") {
      const spread = points[columns[1]].map((value) => value ?? 0);
      const edge = { mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
      drawn.push({ type: "scatter", x, y: y.map((value, at) => value - spread[at]), ...edge });
      drawn.push({ type: "scatter", x, y: y.map((value, at) => value + spread[at]), ...edge, fill: "tonexty", fillcolor: css(colours[1]) });
      more.customdata = spread;
      hover = `${names[0]} %{y:.4~g}, ${names[1]} %{customdata:.2~g}<extra></extra>`;
    }
    drawn.push(line(x, y, colour, { hovertemplate: hover, ...more }), newestPoint(x, y, colour));
    if (kind === "line") {
      columns.slice(1).forEach((column, at) => {
        const own = css(colours[at + 1]);
        drawn.push(line(x, points[column], own, { hovertemplate: `${names[at + 1]} %{y:.4~g}<extra></extra>` }));
        drawn.push(newestPoint(x, points[column], own));
      });
    }
    return drawn;
  };
  const dashed = ({ step }) => ({
    type: "line", xref: "x", yref: "paper", x0: step + 0.5, x1: step + 0.5, y0: 0, y1: 1,
    line: { color: css("--muted"), width: 1, dash: "dash" },
  });
  const named = (seam) => ({
    x: seam.step + 0.5, xref: "x", y: 1, yref: "paper", xanchor: "left", yanchor: "top", showarrow: false,
    text: `attempt ${seam.attempt}`, hovertext: words(seam), font: { size: 10, color: css("--muted") },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--control"), font: { color: css("--ink"), size: 12 } },
  });
  const layout = ({ panel, unit, columns, points }) => {
    const muted = css("--muted"), grid = css("--line");
    const axis = { color: muted, gridcolor: grid, linecolor: grid, zeroline: false, tickfont: { size: 11 }, automargin: false };
    const label = (text) => ({ text, font: { size: 11, color: muted }, standoff: 4 });
    const { floor, ceiling } = panel.dataset;
    const range = {};
    if (ceiling === "1.0") Object.assign(range, { range: [0, 1.001], dtick: 0.25, tickformat: ".0%" });
    else if (floor !== undefined) range.rangemode = "tozero";
    const tiny = columns.every((column) => points[column].every((value) => Math.abs(value ?? 0) < 1e-3));
    if (tiny) range.exponentformat = "power"; // not 300n
    return {
      margin: { l: tiny ? 74 : 52, r: 8, t: 6, b: 36 }, showlegend: false, hovermode: "x", uirevision: "keep",
      datarevision: points.step.length, // the arrays grow in place, which plotly does not see by itself
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: muted },
      hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--control"), font: { color: css("--ink"), size: 12 } },
      xaxis: { ...axis, title: label(width > 1 ? `step (lowest, highest and last of each ${width})` : "step"), showgrid: false, tickformat: ",d", nticks: 6, ...(points.step.at(-1) - points.step[0] < 6 ? { dtick: 1 } : {}), hoverformat: ",d" },
      yaxis: { ...axis, ...range, title: label(unit), nticks: 5, fixedrange: true },
      shapes: seams.map(dashed), annotations: seams.map(named),
    };
  };
  const draw = () => {
    const begun = panels.some(({ points }) => points.step.length > 0);
    for (const chart of panels) {
      const empty = chart.points.step.length === 0;
      chart.panel.classList.toggle("is-empty", empty);
      chart.button.hidden = empty;
      chart.plot.setAttribute("aria-label", [chart.label, ...seams.map(words)].join("; "));
      if (empty && begun) chart.panel.querySelector(".plot-absent").textContent = "No step has reported it.";
      if (empty) continue;
      const first = !chart.plot.classList.contains("js-plotly-plot");
      if (!chart.panel.classList.contains("is-table")) {
        Plotly.react(chart.plot, traces(chart), layout(chart), { displayModeBar: false, responsive: true });
        if (first) link(chart);
      } else fill(chart);
    }
  };

  // ---------------------------------------------------------------- one hover on all charts
  let linked = false;
  const together = (own, act) => {
    if (linked) return;
    linked = true;
    for (const { plot } of panels) if (plot !== own && plot.classList.contains("js-plotly-plot") && plot.offsetParent) act(plot);
    linked = false;
  };
  const link = ({ plot }) => {
    plot.on("plotly_hover", (event) => together(plot, (other) => Plotly.Fx.hover(other, { xval: event.points[0].x })));
    plot.on("plotly_unhover", () => together(plot, (other) => Plotly.Fx.unhover(other)));
  };

  // ---------------------------------------------------------------- the same as a table
  const cell = (kind, text, scope) => {
    const element = document.createElement(kind);
    element.textContent = text;
    if (scope) element.scope = scope;
    if (kind === "td") element.className = "num";
    return element;
  };
  const fill = ({ panel, table, columns, names, points }) => {
    const made = document.createElement("table"), head = made.createTHead().insertRow(), body = made.createTBody();
    made.className = "table";
    const caption = made.createCaption();
    caption.className = "sr-only";
    caption.textContent = panel.querySelector("h2").textContent;
    for (const name of ["step", ...names]) head.append(cell("th", name, "col"));
    const left = [...seams]; // the table goes from the newest step down, and a seam stands between two steps
    const seamsFrom = (step) => {
      while (left.length && left.at(-1).step >= step) {
        const note = cell("th", words(left.pop()), "row");
        note.colSpan = columns.length + 1;
        note.className = "muted";
        body.insertRow().append(note);
      }
    };
    for (let at = points.step.length - 1; at >= 0; at--) {
      seamsFrom(points.step[at]);
      const row = body.insertRow();
      row.append(cell("th", String(points.step[at]), "row"), ...columns.map((column) => cell("td", number(points[column][at]))));
    }
    seamsFrom(0);
    table.replaceChildren(made);
  };
  for (const chart of panels) {
    chart.button.addEventListener("click", () => {
      const shown = chart.panel.classList.toggle("is-table");
      chart.button.setAttribute("aria-pressed", String(shown));
      chart.button.textContent = shown ? "chart" : "table";
      chart.table.hidden = !shown;
      draw();
    });
  }

  document.addEventListener("cohort:theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("cohort:live", () => {
    const shown = header();
    // After a resume the run is further back than what is drawn, or has caught up by now with other numbers.
    if (Number(shown.step ?? 0) === last && shown.seam === seam) return;
    ({ seam } = shown);
    load();
  });
  load();
})();
