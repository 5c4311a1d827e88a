// What the tables of a comparison do besides standing there: parallel coordinates over the columns of final numbers, copy as
// Markdown, and the keys j and k on the page of answers. All of it is there as table, text and links too.
(() => {
  const table = document.getElementById("compare-table"), place = document.getElementById("compare-parallel");
  const svg = (kind, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const clipped = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

  const draw = () => {
    const heads = [...table.querySelectorAll("thead [data-axis]")], rows = [...table.querySelectorAll("tbody tr")];
    const axes = heads.map((head, at) => {
      const texts = rows.map((row) => row.cells[at + 1].dataset.value);
      const numeric = head.dataset.axis === "number";
      const values = texts.map((text) => (text === undefined ? null : numeric ? Number(text) : text));
      const known = values.filter((value) => value !== null);
      const categories = [...new Set(known)].sort();
      const [low, high] = numeric ? [Math.min(...known), Math.max(...known)] : [0, categories.length - 1];
      const share = (value) => (high === low ? 0.5 : ((numeric ? value : categories.indexOf(value)) - low) / (high - low));
      return { label: head.textContent.trim().replace(/\s+/g, " "), numeric, values, known, low, high, categories, share };
    }).filter(({ known }) => known.length);
    if (axes.length < 2) return;
    const gap = Math.max(120, Math.floor(place.parentElement.clientWidth / axes.length) - 8), height = 240, top = 34, bottom = 22;
    const x = (at) => 60 + at * gap, y = (share) => top + (1 - share) * (height - top - bottom);
    const drawn = svg("svg", { width: 120 + (axes.length - 1) * gap, height, "aria-hidden": "true" });
    const number = (value) =>
      (value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(2).replace(/\.?0*e/, "e") : String(+value.toPrecision(4))).replaceAll("-", "−");
    axes.forEach((axis, at) => {
      drawn.append(svg("line", { class: "axis", x1: x(at), x2: x(at), y1: top, y2: height - bottom }));
      drawn.append(svg("text", { x: x(at), y: 12, "text-anchor": "middle" }, clipped(axis.label, 20)));
      const ends = axis.low === axis.high ? [[number(axis.low), 0.5]] : [[number(axis.low), 0], [number(axis.high), 1]];
      const marks = axis.numeric ? ends : axis.categories.map((text) => [clipped(text, 18), axis.share(text)]);
      for (const [text, share] of marks) {
        const above = share === 1 ? -5 : share === 0 ? 13 : 4;
        drawn.append(svg("text", { x: x(at) + (share > 0 && share < 1 ? 5 : 0), y: y(share) + above, "text-anchor": share > 0 && share < 1 ? "start" : "middle" }, text));
      }
    });
    rows.forEach((row, index) => {
      const item = document.querySelector(`.compare-runs [data-run="${row.dataset.run}"]`);
      if (!item || item.hasAttribute("data-hidden")) return;
      let line = "", pen = "M"; // a run without a value has a gap there
      axes.forEach((axis, at) => {
        const value = axis.values[index];
        if (value === null) return void (pen = "M");
        line += `${pen}${x(at)} ${y(axis.share(value)).toFixed(1)}`;
        pen = "L";
      });
      const path = svg("path", { d: line, stroke: css(`--series-${item.dataset.colour}`), "stroke-dasharray": DASHES[item.dataset.dash - 1] });
      path.append(svg("title", {}, `${item.dataset.name} (run ${row.dataset.run})`));
      for (const [source, name, is] of [[path, "pointerenter", true], [path, "pointerleave", false], [row, "pointerenter", true], [row, "pointerleave", false]]) {
        source.addEventListener(name, () => path.classList.toggle("is-hovered", is));
      }
      drawn.append(path);
    });
    place.replaceChildren(drawn);
  };
  if (table && place) {
    draw();
    document.addEventListener("cohort:theme", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    document.querySelector(".compare-runs").addEventListener("click", (event) => {
      if (event.target.closest("[data-hide]")) setTimeout(draw);
    });
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    const source = document.getElementById(button.dataset.copy), words = button.textContent;
    button.hidden = !navigator.clipboard; // without a secure connection the text can be selected below
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.value);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed: select the text below";
        source.closest("details").open = true;
        source.select();
      }
      setTimeout(() => (button.textContent = words), 3000);
    });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const id = { j: "answer-later", k: "answer-earlier" }[event.key];
    if (id && document.getElementById(id)) document.getElementById(id).click();
  });
})();
