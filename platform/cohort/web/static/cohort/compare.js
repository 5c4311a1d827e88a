// Draws metrics of several runs over each other, on canvases: a hundred runs must be there at once. How a run is drawn, and
// which runs differ in the seed alone, stands in the list of runs; what a person chooses here goes into the address.
(() => {
  const root = document.getElementById("curves"), form = document.getElementById("compare-view");
  if (!root || !form) return;
  const { number, short, ticks, smoothed, averaged, nearest } = window.compareNumbers;
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]], VIEW = ["x", "smooth", "log", "band", "hide"];
  const PAD = { left: 58, right: 10, top: 8, bottom: 34 };
  const TIP_LINES = 12, TABLE_ROWS = 100;
  const runs = [...document.querySelectorAll(".compare-runs [data-run]")].map((item) => ({
    id: item.dataset.run, name: item.dataset.name, seed: item.dataset.seed, group: item.dataset.group,
    colour: `--series-${item.dataset.colour}`, dash: Number(item.dataset.dash) - 1, item,
    hidden: item.hasAttribute("data-hidden"),
  }));
  const charts = [...root.querySelectorAll("[data-metric]")].map((panel) => ({
    panel, metric: panel.dataset.metric, canvas: panel.querySelector("canvas"), tip: panel.querySelector(".compare-tip"),
    note: panel.querySelector("[data-note]"), values: panel.querySelector(".compare-values"), reply: null, lines: [], scale: null,
  }));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // ---------------------------------------------------------------- what is chosen, and the address
  const given = new URLSearchParams(location.search);
  for (const name of ["x", "band"]) if ([...form.elements[name].options].some(({ value }) => value === given.get(name))) form.elements[name].value = given.get(name);
  form.elements.smooth.value = given.get("smooth") ?? 0;
  form.elements.log.checked = given.get("log") === "1";
  const view = () => ({
    x: form.elements.x.value, smooth: Number(form.elements.smooth.value), log: form.elements.log.checked, band: form.elements.band.value,
  });
  const chosen = () => {
    const { x, smooth, log, band } = view(), pairs = [];
    if (x !== "step") pairs.push(["x", x]);
    if (smooth) pairs.push(["smooth", smooth]);
    if (log) pairs.push(["log", "1"]);
    if (band !== "range") pairs.push(["band", band]);
    return [...pairs, ...runs.filter((run) => run.hidden).map((run) => ["hide", run.id])];
  };
  const carried = (query) => {
    for (const name of VIEW) query.delete(name);
    for (const [name, value] of chosen()) query.append(name, value);
    return query;
  };
  const links = [...document.querySelectorAll('#runs a[href^="?"]')]; // of the same page with other runs
  const remember = () => {
    history.replaceState(null, "", `?${carried(new URLSearchParams(location.search))}`);
    for (const link of links) link.search = carried(new URLSearchParams(link.search));
    for (const other of document.querySelectorAll("#runs form, #compare-view")) {
      const own = other === form ? ["hide"] : VIEW; // the form of the view has its other fields itself
      for (const input of other.querySelectorAll('input[type="hidden"]')) if (own.includes(input.name)) input.remove();
      for (const [name, value] of chosen()) {
        if (own.includes(name)) other.prepend(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
      }
    }
  };

  // ---------------------------------------------------------------- numbers
  const loaded = new Map();
  const load = (metric, x) => {
    const address = `${root.dataset.series}&${new URLSearchParams({ metric, x })}`;
    if (!loaded.has(address)) {
      const answer = fetch(address, { headers: { Accept: "application/json" } }).then((reply) => {
        if (!reply.ok || reply.redirected) throw new Error(`${metric}: the server answered ${reply.status}`);
        return reply.json();
      });
      answer.catch(() => loaded.delete(address)); // the next choice tries again
      loaded.set(address, answer);
    }
    return loaded.get(address);
  };
  const single = (run, curve, weight) => {
    const value = smoothed(curve.value, weight);
    const points = value.map((y, at) => ({
      x: (curve.x ?? curve.step)[at], step: curve.step[at], y,
      low: weight ? y : curve.low?.[at] ?? y, high: weight ? y : curve.high?.[at] ?? y,
    }));
    return { ...run, points: points.filter(({ x }) => x !== null).sort((a, b) => a.x - b.x), spikes: !weight && curve.low !== undefined };
  };
  const linesOf = (reply) => {
    const { smooth, band } = view();
    const every = runs.filter((run) => !run.hidden && reply.runs[run.id]?.step.length).map((run) => single(run, reply.runs[run.id], smooth));
    if (band === "single") return every;
    const groups = Map.groupBy ? Map.groupBy(every, (line) => line.group || `run ${line.id}`) : every.reduce((map, line) => {
      const key = line.group || `run ${line.id}`;
      return map.set(key, [...(map.get(key) ?? []), line]);
    }, new Map());
    return [...groups.values()].map((members) => (members.length > 1 ? averaged(members, band, reply.width) : members[0]));
  };

  // ---------------------------------------------------------------- drawing
  const scaleOf = (lines, log, width, height) => {
    let [x0, x1, y0, y1, dropped] = [Infinity, -Infinity, Infinity, -Infinity, 0];
    for (const { points } of lines) {
      for (const { x, y, low, high } of points) {
        [x0, x1] = [Math.min(x0, x), Math.max(x1, x)];
        if (log && y <= 0) dropped++;
        else [y0, y1] = [Math.min(y0, log && low <= 0 ? y : low), Math.max(y1, high)];
      }
    }
    if (!Number.isFinite(y0)) return { empty: true, dropped };
    if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    let [a, b] = log ? [Math.log10(y0), Math.log10(y1)] : [y0, y1];
    const room = (b - a || Math.abs(a) || 1) * 0.05;
    [a, b] = [a - room, b + room];
    const inner = { width: width - PAD.left - PAD.right, height: height - PAD.top - PAD.bottom };
    return {
      dropped, x0, x1, a, b, log,
      x: (value) => PAD.left + ((value - x0) / (x1 - x0)) * inner.width,
      y: (value) => PAD.top + (1 - ((log ? Math.log10(value) : value) - a) / (b - a)) * inner.height,
      back: (pixel) => x0 + ((pixel - PAD.left) / inner.width) * (x1 - x0),
      yTicks: log && b - a > 1 ? ticks(a, b, 4).filter(Number.isInteger).map((power) => 10 ** power)
        : log ? ticks(10 ** a, 10 ** b, 4).filter((value) => value > 0) : ticks(a, b, 4),
    };
  };
  const mark = (pen, { dash }, x, y) => {
    pen.beginPath();
    if (dash === 0) pen.arc(x, y, 3.5, 0, 7);
    else if (dash === 1) pen.rect(x - 3, y - 3, 6, 6);
    else if (dash === 2) [[x, y - 4.5], [x + 4, y + 3], [x - 4, y + 3]].forEach(([a, b], at) => pen[at ? "lineTo" : "moveTo"](a, b));
    else [[x, y - 4.5], [x + 4.5, y], [x, y + 4.5], [x - 4.5, y]].forEach(([a, b], at) => pen[at ? "lineTo" : "moveTo"](a, b));
    pen.fill();
  };
  const axes = (pen, scale, width, height) => {
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.lineWidth = 1;
    pen.setLineDash([]);
    [pen.textAlign, pen.textBaseline] = ["right", "middle"];
    for (const tick of scale.yTicks) {
      const y = scale.y(tick);
      pen.strokeStyle = css("--line");
      pen.beginPath();
      pen.moveTo(PAD.left, y);
      pen.lineTo(width - PAD.right, y);
      pen.stroke();
      pen.fillStyle = css("--muted");
      pen.fillText(short(tick), PAD.left - 6, y);
    }
    [pen.textAlign, pen.textBaseline] = ["center", "top"];
    const whole = view().x === "step";
    for (const tick of ticks(scale.x0, scale.x1, Math.max(3, Math.floor(width / 90)))) {
      if (!whole || Number.isInteger(tick)) pen.fillText(short(tick), scale.x(tick), height - PAD.bottom + 4);
    }
    pen.textAlign = "right";
    pen.fillText(form.elements.x.selectedOptions[0].textContent.trim(), width - PAD.right, height - 13);
  };
  const paint = (pen, chart, width, height, cursor) => {
    const { lines } = chart, scale = chart.scale = scaleOf(lines, view().log, width, height);
    if (scale.empty) {
      pen.fillStyle = css("--muted");
      pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      pen.fillText(scale.dropped ? "No value above 0 for a log scale." : "None of the runs shown recorded it.", 12, 24);
      return;
    }
    axes(pen, scale, width, height);
    const drawable = (point) => !scale.log || point.y > 0;
    const floor = scale.log ? 10 ** scale.a : -Infinity;
    for (const line of lines) {
      const points = line.points.filter(drawable), colour = css(line.colour);
      [pen.strokeStyle, pen.fillStyle] = [colour, colour];
      if (line.band) {
        pen.globalAlpha = 0.16;
        pen.beginPath();
        points.forEach((point, at) => pen[at ? "lineTo" : "moveTo"](scale.x(point.x), scale.y(point.high)));
        for (const point of [...points].reverse()) pen.lineTo(scale.x(point.x), scale.y(Math.max(point.low, floor)));
        pen.fill();
        pen.globalAlpha = 1;
      } else if (line.spikes) {
        pen.setLineDash([]);
        [pen.lineWidth, pen.globalAlpha] = [1, 0.35];
        pen.beginPath();
        for (const point of points) {
          pen.moveTo(scale.x(point.x), scale.y(Math.max(point.low, floor)));
          pen.lineTo(scale.x(point.x), scale.y(point.high));
        }
        pen.stroke();
        pen.globalAlpha = 1;
      }
      pen.setLineDash(DASHES[line.dash]);
      pen.lineWidth = line.item.classList.contains("is-hovered") ? 3.5 : lines.length > 30 ? 1.1 : 1.8;
      pen.beginPath();
      points.forEach((point, at) => pen[at ? "lineTo" : "moveTo"](scale.x(point.x), scale.y(point.y)));
      pen.stroke();
      pen.setLineDash([]);
      if (points.length && lines.length <= 30) mark(pen, line, scale.x(points.at(-1).x), scale.y(points.at(-1).y));
    }
    if (cursor !== null && cursor >= scale.x0 && cursor <= scale.x1) {
      [pen.strokeStyle, pen.lineWidth] = [css("--control"), 1];
      pen.beginPath();
      pen.moveTo(scale.x(cursor), PAD.top);
      pen.lineTo(scale.x(cursor), height - PAD.bottom);
      pen.stroke();
    }
  };
  let cursor = null;
  const draw = (chart) => {
    const { canvas } = chart, { clientWidth: width, clientHeight: height } = canvas, ratio = devicePixelRatio || 1;
    if (!width || !chart.reply) return;
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    paint(pen, chart, width, height, cursor);
    canvas.dataset.drawn = chart.lines.length;
  };
  const noteOf = ({ lines, reply, scale }) => {
    const { smooth, band } = view(), groups = lines.filter((line) => line.band);
    return [
      groups.length ? `mean of ${[...new Set(groups.map((line) => line.members))].join(", ")} seeds, band ${band === "sd" ? "± 1 standard deviation" : "lowest to highest"}` : "",
      reply.width > 1 ? `last of each ${reply.width} steps${smooth ? "" : ", bars lowest to highest"}` : "",
      smooth ? `smoothed ${smooth}` : "",
      scale?.dropped ? `${scale.dropped} values of 0 or less are not on a log scale` : "",
    ].filter(Boolean).join(" · ");
  };

  // ---------------------------------------------------------------- one cursor for all charts
  const element = (kind, className, text) => Object.assign(document.createElement(kind), { className, textContent: text });
  const swatch = (line) => line.item.querySelector("svg").cloneNode(true);
  const showTip = (chart, own) => {
    const { tip, scale, lines } = chart;
    if (cursor === null || !scale || scale.empty) return void (tip.hidden = true);
    const at = lines.map((line) => ({ line, point: nearest(line.points, cursor) })).filter(({ point }) => point);
    at.sort((a, b) => b.point.y - a.point.y);
    const rows = at.slice(0, own ? TIP_LINES : 6).map(({ line, point }) => {
      const row = document.createElement("div");
      row.append(swatch(line), element("span", "name", line.name), element("b", "value", number(point.y)));
      if (line.band) row.append(element("span", "muted", `[${number(point.low)}, ${number(point.high)}]`));
      return row;
    });
    const left = at.length - rows.length;
    tip.replaceChildren(element("div", "muted", `${form.elements.x.selectedOptions[0].textContent.trim()} ${short(cursor)}`), ...rows, ...(left ? [element("div", "muted", `and ${left} lower`)] : []));
    tip.hidden = false;
    const right = scale.x(cursor) < chart.canvas.clientWidth / 2;
    tip.style.left = right ? "auto" : "62px";
    tip.style.right = right ? "12px" : "auto";
  };
  const point = (value, own) => {
    cursor = value;
    for (const chart of charts) {
      draw(chart);
      showTip(chart, chart === own);
    }
  };
  for (const chart of charts) {
    chart.canvas.addEventListener("pointermove", (event) => {
      if (!chart.scale || chart.scale.empty) return;
      const x = chart.scale.back(event.offsetX);
      point(view().x === "step" ? Math.round(x) : x, chart);
    });
    chart.canvas.addEventListener("pointerleave", () => point(null, null));
    new ResizeObserver(() => draw(chart)).observe(chart.canvas);
  }
  for (const run of runs) {
    const over = (is) => () => {
      run.item.classList.toggle("is-hovered", is);
      for (const chart of charts) draw(chart);
    };
    run.item.addEventListener("pointerenter", over(true));
    run.item.addEventListener("pointerleave", over(false));
  }

  // ---------------------------------------------------------------- the same as a table, a picture, a file
  const fill = ({ values, lines, panel }) => {
    const table = element("table", "table", ""), head = table.createTHead().insertRow(), body = table.createTBody();
    const cell = (kind, text, scope) => Object.assign(element(kind, kind === "td" ? "num" : "", text), scope ? { scope } : {});
    table.createCaption().textContent = `${panel.querySelector("h2").textContent}: newest first, every so many steps where there are more than ${TABLE_ROWS}`;
    head.append(cell("th", "step", "col"), ...lines.map((line) => cell("th", line.name, "col")));
    const steps = [...new Set(lines.flatMap((line) => line.points.map(({ step }) => step)))].sort((a, b) => b - a);
    const every = Math.ceil(steps.length / TABLE_ROWS), maps = lines.map((line) => new Map(line.points.map((part) => [part.step, part])));
    for (const step of steps.filter((_, at) => at % every === 0)) {
      body.insertRow().append(cell("th", String(step), "row"), ...maps.map((map) => {
        const part = map.get(step);
        return cell("td", part?.n ? `${number(part.y)} [${number(part.low)}, ${number(part.high)}]` : number(part?.y));
      }));
    }
    values.replaceChildren(table);
  };
  const picture = (chart) => {
    const { clientWidth: width, clientHeight: height } = chart.canvas, ratio = 2, lines = chart.lines;
    const made = document.createElement("canvas"), pen = made.getContext("2d");
    [made.width, made.height] = [width * ratio, (height + 34 + 16 * lines.length) * ratio];
    pen.scale(ratio, ratio);
    pen.fillStyle = css("--panel");
    pen.fillRect(0, 0, made.width, made.height);
    pen.fillStyle = css("--ink");
    pen.font = `bold 13px ${getComputedStyle(document.body).fontFamily}`;
    pen.fillText(`${chart.panel.querySelector("h2").textContent}${chart.note.textContent ? ` (${chart.note.textContent})` : ""}`, 10, 18);
    pen.translate(0, 26);
    paint(pen, chart, width, height, null);
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    [pen.textAlign, pen.textBaseline] = ["left", "middle"];
    lines.forEach((line, at) => {
      const y = height + 8 + 16 * at;
      [pen.strokeStyle, pen.lineWidth, pen.fillStyle] = [css(line.colour), 2, css("--ink")];
      pen.setLineDash(DASHES[line.dash]);
      pen.beginPath();
      pen.moveTo(12, y);
      pen.lineTo(40, y);
      pen.stroke();
      pen.fillText(`${line.name} (run ${line.id})`, 48, y);
    });
    made.toBlob((blob) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${chart.metric.replaceAll(/[^\w.-]+/g, "-")}.png` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    });
  };
  for (const chart of charts) {
    const button = chart.panel.querySelector("[data-table]");
    button.addEventListener("click", () => {
      const shown = chart.panel.classList.toggle("is-table");
      button.setAttribute("aria-pressed", String(shown));
      button.textContent = shown ? "chart" : "table";
      chart.values.hidden = !shown;
      if (shown) fill(chart);
      else draw(chart);
    });
    chart.panel.querySelector("[data-png]").addEventListener("click", () => picture(chart));
  }

  // ---------------------------------------------------------------- together
  const redraw = () => {
    for (const chart of charts) {
      if (!chart.reply) continue;
      chart.lines = linesOf(chart.reply);
      draw(chart);
      chart.note.textContent = noteOf(chart);
      if (chart.panel.classList.contains("is-table")) fill(chart);
    }
  };
  const refresh = async () => {
    const { x } = view();
    await Promise.all(charts.map(async (chart) => {
      try {
        const reply = await load(chart.metric, x);
        if (view().x !== x) return; // another axis was chosen meanwhile
        chart.reply = reply;
      } catch (error) {
        chart.note.textContent = `not loaded: ${error.message}. Choose the axis again, or reload the page.`;
        return;
      }
      chart.lines = linesOf(chart.reply);
      draw(chart);
      chart.note.textContent = noteOf(chart);
    }));
    root.dataset.ready = x;
  };
  for (const run of runs) {
    const button = run.item.querySelector("[data-hide]");
    button.hidden = false;
    button.addEventListener("click", () => {
      run.hidden = !run.hidden;
      run.item.toggleAttribute("data-hidden", run.hidden);
      button.setAttribute("aria-pressed", String(run.hidden));
      remember();
      redraw();
    });
  }
  for (const name of ["smooth", "log", "band"]) {
    form.elements[name].addEventListener("input", () => {
      remember();
      redraw();
    });
  }
  form.elements.x.addEventListener("change", () => {
    remember();
    refresh();
  });
  document.addEventListener("cohort:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  remember();
  refresh();
})();
