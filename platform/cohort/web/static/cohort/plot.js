// Draws lines of numbers with Plotly, without any state of a page: values of a line, its band, smoothing, traces, layout.
// `data` is what series.json answers; a line is one of cohort/web/runs/chart_list.py; `view` says how to show them:
// {xs, axis: {title, format}, range, smooth, log, hidden}.
window.CohortPlot = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => (value === null || value === undefined ? "–" : String(+value.toPrecision(4)).replace("-", "−"));
  const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%{", "% {"); // Plotly reads marks

  // The sum of a line's terms at every step; null where one of them is absent.
  const values = (line, data) => {
    const terms = Object.entries(line.terms).map(([name, factor]) => [name === "" ? null : data.metrics[name] ?? [], factor]);
    return data.step.map((_, at) => {
      let sum = 0;
      for (const [column, factor] of terms) {
        const value = column === null ? 1 : column[at] ?? null;
        if (value === null) return null;
        sum += factor * value;
      }
      return sum;
    });
  };

  // [low, high] of a line's band; null without one. Where steps are joined, it is of their lowest and highest.
  const band = (line, data, { points }) => {
    const edge = (side, name) => (points ? undefined : data[side][name]) ?? data.metrics[name];
    if (line.low) return edge("low", line.low) && [edge("low", line.low), edge("high", line.high)];
    const [[name, factor], more] = Object.entries(line.terms);
    if (data.width > 1) {
      if (more || name === "" || !(data.low[name] || data.high[name])) return null;
      const scaled = (side) => edge(side, name).map((value) => (value === null ? null : factor * value));
      return factor < 0 ? [scaled("high"), scaled("low")] : [scaled("low"), scaled("high")];
    }
    const spread = line.spread && data.metrics[line.spread];
    if (!spread) return null;
    const middle = values(line, data), around = (sign) => middle.map((value, at) => (value === null ? null : value + sign * (spread[at] ?? 0)));
    return [around(-1), around(1)];
  };

  // Exponential moving average with its start corrected: the first value is the first, not a share of it.
  const smoothed = (column, weight) => {
    let sum = 0, mass = 0;
    return column.map((value) => {
      if (value === null) return null;
      [sum, mass] = [weight * sum + (1 - weight) * value, weight * mass + (1 - weight)];
      return sum / mass;
    });
  };

  const trace = (x, y, colour, more = {}) => ({
    type: "scatter", mode: "lines", x, y, connectgaps: true, line: { color: colour, width: 2 }, ...more,
  });
  const newestPoint = (x, y, colour) => {
    const at = y.findLastIndex((value) => value !== null);
    return {
      type: "scatter", mode: "markers", x: [x[at]], y: [y[at]], hoverinfo: "skip",
      marker: { color: colour, size: 7, line: { color: css("--panel"), width: 2 } },
    };
  };
  const filled = (x, [low, high], colour) => {
    const kept = x.map((_, at) => at).filter((at) => low[at] !== null && high[at] !== null);
    const edge = { type: "scatter", mode: "lines", x: kept.map((at) => x[at]), line: { width: 0 }, hoverinfo: "skip" };
    return [
      { ...edge, y: kept.map((at) => low[at]) },
      { ...edge, y: kept.map((at) => high[at]), fill: "tonexty", fillcolor: `${css(colour)}26` },
    ];
  };

  const stack = (chart, data, view) => {
    const share = chart.ceiling === 1;
    return chart.lines.filter((line) => !view.hidden.has(line.name)).map((line) =>
      trace(view.xs, values(line, data).map((value) => Math.max(value ?? 0, 0)), css(line.colour), {
        stackgroup: "all", fillcolor: `${css(line.colour)}b3`, line: { width: 0, color: css(line.colour) },
        hovertemplate: `${literal(line.name)} ${share ? "%{y:.0%}" : "%{y:.3~g}"}<extra></extra>`,
      }));
  };
  const traces = (chart, data, view) => {
    if (chart.kind === "stack") return stack(chart, data, view);
    const under = [], over = [];
    for (const line of chart.lines) {
      if (view.hidden.has(line.name)) continue;
      const colour = css(line.colour), raw = values(line, data), around = band(line, data, chart);
      const smooth = view.smooth > 0 && !chart.points, shown = smooth ? smoothed(raw, view.smooth) : raw;
      if (around) under.push(...filled(view.xs, around, line.colour));
      if (smooth) under.push(trace(view.xs, raw, `${colour}55`, { line: { color: `${colour}55`, width: 1 }, hoverinfo: "skip" }));
      const each = around ? { customdata: raw.map((value, at) => [value, around[0][at], around[1][at]]) } : { customdata: raw.map((value) => [value]) };
      const hover = [
        literal(line.name), smooth ? "%{y:.4~g} smoothed, %{customdata[0]:.4~g}" : "%{y:.4~g}",
        around ? "(%{customdata[1]:.4~g} to %{customdata[2]:.4~g})" : "",
      ].join(" ");
      over.push(trace(view.xs, shown, colour, { ...each, hovertemplate: `${hover}<extra></extra>`, ...(chart.points ? { mode: "lines+markers" } : {}) }));
      if (!chart.points && !view.range) over.push(newestPoint(view.xs, shown, colour));
    }
    return [...under, ...over];
  };

  const words = ({ step, attempt, why }) =>
    `resumed from ${step ? `step ${step}` : "the evaluation before training"}, attempt ${attempt} (${why})`;
  const label = () => ({ bgcolor: css("--panel"), bordercolor: css("--control"), font: { color: css("--ink"), size: 12 } });
  const seamsOf = (data, view) => data.seams.map((seam) => {
    if (view.axis.name === "step") return { ...seam, x: seam.step + 0.5 };
    const after = data.step.findIndex((step) => step > seam.step);
    return { ...seam, x: view.xs[after] ?? null };
  }).filter(({ x }) => x !== null);
  const decades = (chart, data) => {
    const drawn = chart.lines.flatMap((line) => [values(line, data), ...(band(line, data, chart) ?? [])].flat());
    const above = drawn.filter((value) => value > 0);
    return above.length ? Math.log10(Math.max(...above) / Math.min(...above)) : 0;
  };
  let drawings = 0;
  const layout = (chart, data, view) => {
    const muted = css("--muted");
    const axis = { color: muted, gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, tickfont: { size: 11 }, automargin: false };
    const title = (text) => ({ text, font: { size: 11, color: muted }, standoff: 4 });
    const y = {};
    if (view.log) {
      const spanned = decades(chart, data); // at 1, 2 and 5 where Plotly would mark too many or too few
      Object.assign(y, { type: "log", tickformat: ".3~g", ...(spanned > 0.7 && spanned < 2 ? { dtick: "D2" } : {}) });
    }
    else if (chart.kind === "stack" && chart.ceiling === 1) Object.assign(y, { range: [0, 1.001], dtick: 0.25, tickformat: ".0%" });
    else {
      if (chart.floor !== null) y.rangemode = "tozero";
      if (chart.ceiling === 1) y.tickformat = ".3~p";
    }
    const tiny = chart.lines.every((line) => values(line, data).every((value) => Math.abs(value ?? 0) < 1e-3)) && chart.lines.some((line) => values(line, data).some(Boolean));
    if (tiny) y.exponentformat = "power"; // not 300n
    const seams = seamsOf(data, view), few = view.axis.name === "step" && data.step.at(-1) - data.step[0] < 6;
    return {
      margin: { l: tiny || view.log ? 74 : 52, r: 8, t: 10, b: 36 }, showlegend: false, hovermode: "x",
      uirevision: JSON.stringify([view.axis.name, view.range]),
      datarevision: ++drawings, // or plotly keeps what it computed of other values, and draws them along wrong axes
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: muted }, hoverlabel: label(),
      xaxis: {
        ...axis, title: title(view.axis.title), showgrid: false, tickformat: view.axis.format, nticks: 6, hoverformat: view.axis.format,
        ...(few ? { dtick: 1 } : {}), ...(view.range ? { range: view.range, autorange: false } : { autorange: true }),
      },
      yaxis: { ...axis, ...y, title: title(chart.unit), nticks: 5, fixedrange: true },
      shapes: seams.map(({ x }) => ({
        type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: muted, width: 1, dash: "dash" },
      })),
      annotations: seams.map((seam) => ({
        x: seam.x, xref: "x", y: 1, yref: "paper", xanchor: "left", yanchor: "top", showarrow: false,
        text: `attempt ${seam.attempt}`, hovertext: words(seam), font: { size: 10, color: muted }, hoverlabel: label(),
      })),
    };
  };

  // Keep the chart as a picture on a ground of its own, with its title.
  const image = async (chart, data, view, name) => {
    const ground = css("--panel"), drawn = layout(chart, data, view);
    const figure = {
      data: traces(chart, data, view),
      layout: {
        ...drawn, paper_bgcolor: ground, plot_bgcolor: ground, showlegend: chart.lines.length > 1,
        title: { text: literal(chart.title), font: { size: 15, color: css("--ink") } }, margin: { l: 80, r: 20, t: 50, b: 50 },
      },
    };
    const link = document.createElement("a");
    link.href = await Plotly.toImage(figure, { format: "png", width: 960, height: 480, scale: 2 });
    link.download = name;
    link.click();
  };

  return { css, number, literal, values, band, smoothed, traces, layout, words, image };
})();
