// The list of runs by keyboard, and what is chosen and focused in it while its rows are polled. Without it the list is
// plain links and forms.
(() => {
  const chosen = new Set(); // ids of runs, kept over a swap of the rows
  const rows = () => [...document.querySelectorAll("#run-rows tbody tr")];
  const boxes = () => [...document.querySelectorAll('#run-rows input[name="run"]')];
  const all = document.getElementById("all-matching"), words = document.getElementById("chosen");

  const show = () => {
    const page = document.getElementById("choose-page"), here = boxes();
    for (const box of here) box.checked = chosen.has(box.value);
    if (page) {
      const count = here.filter((box) => box.checked).length;
      page.hidden = false;
      page.checked = count > 0 && count === here.length;
      page.indeterminate = count > 0 && count < here.length;
    }
    if (words) words.textContent = all?.checked ? "All that match chosen" : `${chosen.size} chosen`;
  };
  const keep = (box) => (box.checked ? chosen.add(box.value) : chosen.delete(box.value));

  document.addEventListener("change", (event) => {
    if (event.target.id === "choose-page") for (const box of boxes()) keep(Object.assign(box, { checked: event.target.checked }));
    else if (event.target.matches('#run-rows input[name="run"]')) keep(event.target);
    else if (event.target !== all) return;
    show();
  });

  // Rows are swapped as a whole. A box that was focused, or a link, is found again by what it is of; so is an open note.
  let focus = "", open = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "run-rows") return;
    const active = document.activeElement;
    focus = event.detail.target.contains(active) ? (active.id ? `#${active.id}` : active.value ? `input[name="run"][value="${active.value}"]` : "") : "";
    open = [...event.detail.target.querySelectorAll("details[open]")].map((note) => note.id);
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (!event.detail.target?.isConnected && !document.getElementById("run-rows")) return;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    show();
    const again = focus && document.querySelector(`#run-rows ${focus}`);
    if (again && document.activeElement !== again) again.focus({ preventScroll: true });
    [focus, open] = ["", []];
  });

  const at = () => rows().findIndex((row) => row.contains(document.activeElement));
  const go = (index) => {
    const row = rows()[index];
    if (!row) return;
    row.querySelector("th a").focus();
    row.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest('input:not([type="checkbox"]), select, textarea, dialog')) return;
    const here = at();
    switch (event.key) {
      case "/": document.getElementById("q")?.focus(); document.getElementById("q")?.select(); break;
      case "j": go(here + 1); break;
      case "k": go(here < 0 ? rows().length - 1 : here - 1); break;
      case "x": if (here < 0) return; rows()[here].querySelector('input[name="run"]').click(); break;
      case "?": { const keys = document.getElementById("tool-keys"); if (keys) keys.open = !keys.open; break; }
      default: return;
    }
    event.preventDefault();
  });

  for (const box of boxes()) if (box.checked) chosen.add(box.value); // as the browser kept them on the way back
  show();
})();
