// The numbers of a run's charts on its page: as series.json answers them, what is new appended, the horizontal axis that a
// viewer chose, and the same numbers as a table.
window.CohortSeries = (() => {
  const { number, values, words } = window.CohortPlot;
  const nothing = () => ({ step: [], at: [], metrics: {}, low: {}, high: {}, width: 1, seams: [], started: null });

  const append = (whole, more) => {
    const had = whole.step.length, blank = (count) => Array(count).fill(null);
    whole.step.push(...more.step);
    whole.at.push(...more.at);
    const added = more.step.length;
    for (const side of ["low", "high"]) {
      for (const name of new Set([...Object.keys(whole[side]), ...Object.keys(more[side])])) {
        const column = (whole[side][name] ??= [...(whole.metrics[name] ?? blank(had))]);
        column.push(...(more[side][name] ?? more.metrics[name] ?? blank(added)));
      }
    }
    for (const name of new Set([...Object.keys(whole.metrics), ...Object.keys(more.metrics)])) {
      const column = (whole.metrics[name] ??= blank(had));
      column.push(...(more.metrics[name] ?? blank(added)));
    }
  };

  // What stands at each step of `data`, and the axis's title and format; times have the unit that suits the whole run.
  const UNITS = [[7200, 3600, "hours"], [120, 60, "minutes"], [0, 1, "seconds"]];
  const axisOf = ({ step, at, started, metrics }, whole, chosen, completions) => {
    const begun = started ?? whole.at[0] ?? 0;
    const [, size, unit] = UNITS.find(([least]) => (whole.at.at(-1) ?? begun) - begun >= least) ?? UNITS[2];
    const axes = {
      step: () => [step, "step", ",d"],
      time: () => [at.map((time) => (time === null ? null : (time - begun) / size)), `${unit} since its first start`, ",.4~g"],
      tokens: () => [metrics.num_tokens ?? step.map(() => null), "tokens sampled and prompted", ".3~s"],
      samples: () => [step.map((each) => each * Number(completions)), `completions, ${completions} a step`, ",d"],
    };
    const [xs, title, format] = axes[chosen]();
    return { xs, axis: { name: chosen, title, format } };
  };

  const cell = (kind, content, scope) => {
    const element = document.createElement(kind);
    if (typeof content === "string") element.textContent = content;
    else element.append(content);
    if (scope) element.scope = scope;
    if (kind === "td") element.className = "num";
    return element;
  };
  const fill = ({ table, lines, title }, data, view, groupsOf) => {
    const { step, seams, width } = data, columns = lines.map((line) => values(line, data));
    const made = document.createElement("table"), caption = made.createCaption();
    const head = made.createTHead().insertRow(), body = made.createTBody();
    made.className = "table";
    caption.className = "sr-only";
    caption.textContent = title;
    for (const name of [width > 1 ? `step (last of ${width})` : "step", ...lines.map(({ name }) => name)]) head.append(cell("th", name, "col"));
    const left = [...seams]; // the table goes from the newest step down, and a seam stands between two steps
    const seamsFrom = (first) => {
      while (left.length && left.at(-1).step >= first) {
        const note = cell("th", words(left.pop()), "row");
        note.colSpan = columns.length + 1;
        note.className = "muted";
        body.insertRow().append(note);
      }
    };
    for (let at = step.length - 1; at >= 0; at--) {
      if (step[at] < (view.from ?? 0) || step[at] > (view.to ?? Infinity) || columns.every((column) => column[at] === null)) continue;
      seamsFrom(step[at]);
      const groups = document.createElement("a");
      groups.href = groupsOf(step[at]);
      groups.textContent = String(step[at]);
      groups.title = "the groups of this step";
      body.insertRow().append(cell("th", groups, "row"), ...columns.map((column) => cell("td", number(column[at]))));
    }
    seamsFrom(0);
    table.replaceChildren(made);
  };

  return { nothing, append, axisOf, fill };
})();
