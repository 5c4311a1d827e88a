// Draws the scatter of a run's samples once it is in sight. What it draws is in `data-scatter`, which
// cohort/web/review/scatter.py writes: points, or fields of a grid with their counts. The table beneath has the same.
(() => {
  if (!window.Plotly) return;
  const { css, number, literal } = window.CohortPlot;
  const VERDICTS = [["right", 1, "--right", "circle"], ["wrong", 0, "--wrong", "x"], ["not judged", null, "--muted", "diamond-open"]];

  // Of points [tokens, reward, colour, step, group, number].
  const pointed = (points, colour, more) => ({
    type: "scatter", mode: "markers", x: points.map(([x]) => x), y: points.map(([, y]) => y), name: colour,
    customdata: points.map(([, , value, step, group, sample]) => [group, sample, step, number(value)]), ...more,
  });
  const where = "%{x:,} tokens, reward %{y:.4~g}<br>step %{customdata[2]:,}, sample %{customdata[1]}";
  const scale = (name) => ({
    colorscale: [[0, css("--wrong")], [0.5, css("--suspect")], [1, css("--right")]],
    colorbar: { title: { text: literal(name), side: "right", font: { size: 11, color: css("--muted") } }, tickfont: { size: 11, color: css("--muted") }, thickness: 12, outlinewidth: 0 },
  });
  const traces = ({ points, cells, right, colour }) => {
    const name = right ? "share right" : colour;
    if (points.length && right) {
      return VERDICTS.map(([words, value, property, symbol]) => pointed(points.filter(([, , each]) => each === value), words, {
        marker: { color: css(property), symbol, size: 7, opacity: 0.75 }, hovertemplate: `${where}<br>${words}<extra></extra>`,
      })).filter(({ x }) => x.length);
    }
    const known = (rows, at) => [rows.filter((row) => row[at] !== null), rows.filter((row) => row[at] === null)];
    if (points.length) {
      const [valued, without] = known(points, 2);
      return [
        pointed(valued, colour, {
          marker: { color: valued.map(([, , value]) => value), size: 7, opacity: 0.8, ...scale(name) },
          hovertemplate: `${where}<br>${literal(name)} %{customdata[3]}<extra></extra>`,
        }),
        pointed(without, `no ${colour}`, {
          marker: { color: css("--muted"), symbol: "diamond-open", size: 7 }, hovertemplate: `${where}<br>no ${literal(name)}<extra></extra>`,
        }),
      ].filter(({ x }) => x.length);
    }
    const most = Math.log1p(Math.max(...cells.map(([, , count]) => count)));
    const field = (rows, marker) => ({
      type: "scatter", mode: "markers", x: rows.map(([x]) => x), y: rows.map(([, y]) => y),
      customdata: rows.map(([, , count, value, query]) => [query, count, number(value)]),
      marker: { symbol: "square", size: rows.map(([, , count]) => 3 + 9 * (Math.log1p(count) / most)), ...marker },
      hovertemplate: `about %{x:,.0f} tokens, reward %{y:.3~g}<br>%{customdata[1]:,} samples, ${literal(name)} %{customdata[2]}<extra></extra>`,
    });
    const [valued, without] = known(cells, 3);
    return [field(valued, { color: valued.map((row) => row[3]), ...scale(name) }), field(without, { color: css("--muted") })].filter(({ x }) => x.length);
  };
  const layout = () => {
    const muted = css("--muted");
    const axis = { color: muted, gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, tickfont: { size: 11 }, nticks: 6 };
    const title = (text) => ({ text, font: { size: 11, color: muted }, standoff: 4 });
    return {
      margin: { l: 52, r: 8, t: 10, b: 40 }, hovermode: "closest", showlegend: true, legend: { orientation: "h", y: 1.12, font: { size: 11, color: muted } },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: muted },
      hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--control"), font: { color: css("--ink"), size: 12 } },
      xaxis: { ...axis, title: title("length, tokens"), tickformat: "," }, yaxis: { ...axis, title: title("reward") },
    };
  };
  const show = (plot) => {
    const data = JSON.parse(plot.dataset.scatter), first = !plot.classList.contains("js-plotly-plot");
    const drawn = traces(data);
    Plotly.react(plot, drawn, { ...layout(), showlegend: data.points.length > 0 && drawn.length > 1 }, { displayModeBar: false, responsive: true, showTips: false });
    if (!first) return;
    plot.on("plotly_click", ({ event, points: [{ customdata }] }) => {
      const [target, sample] = customdata;
      const address = data.points.length ? `${data.groups}${target}/?sample=${sample}#sample-${sample}` : `${plot.dataset.samples}?${target}`;
      if (event?.ctrlKey || event?.metaKey) open(address);
      else location.assign(address);
    });
  };

  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      show(target);
    }
  }, { rootMargin: "200px" });
  const adopt = () => document.querySelectorAll("[data-scatter]:not(.js-plotly-plot)").forEach((plot) => seen.observe(plot));
  const redraw = () => document.querySelectorAll("[data-scatter].js-plotly-plot").forEach(show);
  document.addEventListener("htmx:afterSettle", adopt);
  document.addEventListener("cohort:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  adopt();
})();
