// The editor of a verifier's source: line numbers, Tab, and the lines at fault marked. The form works without it.
(() => {
  const pad = "    ";

  const grow = (editor) => {
    const area = editor.querySelector("textarea"), lines = editor.querySelector(".editor-lines");
    const count = area.value.split("\n").length;
    const said = document.getElementById(area.getAttribute("hx-target").slice(1));
    const faulty = new Set((said?.dataset.lines ?? "").trim().split(/\s+/).filter(Boolean).map(Number));
    lines.replaceChildren(...Array.from({ length: count }, (_, at) => {
      const number = document.createElement("span");
      number.textContent = String(at + 1);
      if (faulty.has(at + 1)) number.className = "faulty";
      return number;
    }));
    lines.scrollTop = area.scrollTop;
  };

  // Through execCommand, as typed text is, so that Ctrl+Z undoes it; every browser that runs htmx 2 has it.
  const put = (area, text) => document.execCommand("insertText", false, text);

  const indent = (area, back) => {
    const { value, selectionStart: from, selectionEnd: to } = area;
    const start = value.lastIndexOf("\n", from - 1) + 1;
    if (from === to && !back) return put(area, pad.slice((from - start) % pad.length));
    const chosen = value.slice(start, to);
    const moved = chosen.split("\n").map((line) => (back ? line.replace(/^ {1,4}|^\t/, "") : line && pad + line)).join("\n");
    if (moved === chosen) return;
    area.setSelectionRange(start, to);
    put(area, moved);
    const first = moved.split("\n")[0].length - chosen.split("\n")[0].length;
    area.setSelectionRange(from === to ? Math.max(start, from + first) : start, start + moved.length);
  };

  const newline = (area) => {
    const { value, selectionStart: from } = area;
    const line = value.slice(value.lastIndexOf("\n", from - 1) + 1, from);
    put(area, "\n" + line.match(/^ */)[0] + (/:\s*(#.*)?$/.test(line) ? pad : ""));
  };

  const keys = (event) => {
    const area = event.target;
    if (event.key === "Escape") { area.dataset.leave = "1"; return; }
    const leaving = area.dataset.leave === "1";
    if (!["Shift", "Control", "Alt", "Meta"].includes(event.key)) delete area.dataset.leave;
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Tab" && !leaving) { event.preventDefault(); indent(area, event.shiftKey); }
    else if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); newline(area); }
  };

  const begin = () => {
    for (const button of document.querySelectorAll("[data-without-script]")) button.hidden = true; // the fields come by themselves
    for (const editor of document.querySelectorAll("[data-editor]:not(.is-live)")) {
      const area = editor.querySelector("textarea");
      editor.classList.add("is-live");
      editor.querySelector(".editor-lines").hidden = false;
      const help = editor.parentElement.querySelector("[data-editor-help]");
      if (help) help.hidden = false;
      area.addEventListener("keydown", keys);
      area.addEventListener("input", () => grow(editor));
      area.addEventListener("scroll", () => { editor.querySelector(".editor-lines").scrollTop = area.scrollTop; });
      grow(editor);
    }
  };

  document.addEventListener("htmx:afterSettle", () => {
    begin();
    for (const editor of document.querySelectorAll("[data-editor].is-live")) grow(editor);
  });

  // A row that app.js copies out of its template has never been seen by htmx.
  for (const rows of document.querySelectorAll("[data-rows]")) {
    new MutationObserver((changes) => {
      for (const change of changes) for (const node of change.addedNodes) if (node.nodeType === 1) htmx.process(node);
      begin();
    }).observe(rows, { childList: true });
  }
  begin();
})();
