// Polls what is live, fast while it changes and slower while it does not, lets "3 s ago" grow by itself, and opens dialogs.
// Every page works without it: it then shows the moment it was loaded.
(() => {
  const FAST = 2000, SLOWEST = 8000, TROUBLE = 30000;
  const timers = new Map(); // id of the polled element → {wait, handle}

  const ask = (id) => {
    const element = document.getElementById(id);
    if (!element || !element.hasAttribute("data-poll")) return void timers.delete(id);
    if (document.hidden) return; // asked again when somebody looks
    htmx.trigger(element, "cohort:poll");
  };
  const later = (id, wait) => {
    clearTimeout(timers.get(id)?.handle);
    timers.set(id, { wait, handle: setTimeout(() => ask(id), wait) });
  };
  const begin = () => {
    for (const element of document.querySelectorAll("[data-poll]")) if (!timers.has(element.id)) later(element.id, FAST);
  };

  document.addEventListener("htmx:afterRequest", (event) => {
    const id = event.detail.requestConfig.elt.id; // detail.elt is another one once the element has been swapped
    if (!timers.has(id) || event.detail.requestConfig.verb !== "get") return;
    const { wait } = timers.get(id), status = event.detail.xhr.status;
    if (status === 200 || status === 286) later(id, FAST); // `ask` ends it where nothing polls any more
    else if (status === 204) later(id, Math.min(wait * 1.4, Number(document.getElementById(id)?.dataset.slowest ?? SLOWEST)));
    else later(id, Math.min(wait * 2, TROUBLE));
    if (status === 200 || status === 286) document.dispatchEvent(new CustomEvent("cohort:live"));
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) for (const id of [...timers.keys()]) later(id, 0);
  });

  // What a reader opened stays open when its part is drawn again.
  let opened = [];
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    opened = [...event.detail.target.querySelectorAll("details[id][open]")].map((details) => details.id);
  });
  document.addEventListener("htmx:oobAfterSwap", () => {
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    opened = [];
  });

  // "It is in the queue" was true when the page came.
  const state = () => document.getElementById("live-header")?.dataset.state;
  const came = state();
  document.addEventListener("htmx:afterSettle", () => {
    if (state() === came) return;
    for (const said of document.querySelectorAll(".messages .success"))
      (said.parentElement.childElementCount > 1 ? said : said.parentElement).remove();
  });

  // The same words as the server's filters `ago` and `duration`.
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const span = (seconds, parts) => {
    const at = units.findIndex(([, size]) => seconds >= size);
    if (at < 0) return parts === 1 ? "" : "0\u00a0s";
    const [name, size] = units[at];
    let text = `${Math.floor(seconds / size)}\u00a0${name}`;
    const rest = parts > 1 && at + 1 < units.length ? Math.floor((seconds % size) / units[at + 1][1]) : 0;
    if (rest) text += ` ${rest}\u00a0${units[at + 1][0]}`;
    return text;
  };
  const tick = () => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime) - skew) / 1000));
      const text = time.dataset.ago === "for" ? span(seconds, 2) : seconds < 1 ? "now" : `${span(seconds, 1)} ago`;
      if (time.textContent !== text) time.textContent = text;
    }
    for (const time of document.querySelectorAll("time[data-until]")) {
      const text = span(Math.max(0, Math.ceil((Date.parse(time.dateTime) - Date.now() + skew) / 1000)), 2);
      if (time.textContent !== text) time.textContent = text;
    }
  };
  // A browser's clock may be wrong by minutes; the server's is in each answer's Date header.
  let skew = 0;
  document.addEventListener("htmx:afterRequest", (event) => {
    const served = Date.parse(event.detail.xhr.getResponseHeader("Date") ?? "");
    if (!Number.isNaN(served) && Math.abs(Date.now() - served) > 5000) skew = Date.now() - served;
  });

  // A form that is a page of its own opens in a dialog of this one; without scripts, or when it fails, the page opens.
  const dialog = document.getElementById("dialog");
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-dialog]");
    if (!link || !dialog || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    dialog.replaceChildren();
    htmx.ajax("GET", link.getAttribute("href"), { target: dialog, swap: "innerHTML" }).then(() => {
      if (!dialog.childElementCount) location.assign(link.href);
      else if (!dialog.open) dialog.showModal();
    });
  });

  setInterval(() => { if (!document.hidden) tick(); }, 1000);
  begin();
})();
