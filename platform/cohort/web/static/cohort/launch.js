// The run form beyond htmx: the address of its draft, what was typed last when the page is left, and copies to the
// clipboard. Without it the form is sent by its buttons and copies are downloads.
(() => {
  const form = () => document.getElementById("run-form");
  const address = () => form().getAttribute("action"); // form().action is the buttons of that name
  const channel = "BroadcastChannel" in window ? new BroadcastChannel("cohort-drafts") : null;
  let unsaved = false;

  // ---------------------------------------------------------------- the draft
  // A reload and Back come to the draft, not to an empty form. Not through htmx: its history would bring an old page.
  const saved = () => {
    const { draft, revision, window: saver } = document.getElementById("draft-state")?.dataset ?? {};
    if (!draft) return;
    const here = new URL(location.href);
    if (here.searchParams.get("draft") !== draft) {
      here.search = `?draft=${draft}`;
      history.replaceState(history.state, "", here);
    }
    channel?.postMessage({ draft, saver, revision: Number(revision) });
  };
  channel?.addEventListener("message", ({ data }) => {
    const [own, opened] = form()?.elements.window.value.split(".") ?? [];
    if (data.draft !== form()?.elements.form_token.value || data.saver === own) return;
    const state = document.getElementById("draft-state");
    if (data.revision <= Number(state.dataset.revision ?? opened)) return; // older than what this window saved itself
    state.textContent = "! Changed in another window: reload to see it. What you change here takes its place.";
    state.classList.add("suspect");
  });
  document.addEventListener("input", (event) => { if (event.target.form === form()) unsaved = true; });
  document.addEventListener("htmx:beforeRequest", (event) => { if (form()?.contains(event.target)) unsaved = false; });
  document.addEventListener("htmx:afterSettle", (event) => { if (event.detail.requestConfig?.verb === "post") saved(); });
  for (const trouble of ["htmx:sendError", "htmx:responseError", "htmx:sendAbort"])
    document.addEventListener(trouble, (event) => { if (form()?.contains(event.target)) unsaved = true; });
  addEventListener("pagehide", () => {
    if (!unsaved || !form() || form().querySelector("[aria-busy=true]")) return; // busy: it was sent
    const texts = new FormData(form());
    texts.append("action", "check");
    navigator.sendBeacon(address(), texts);
    unsaved = false;
  });

  // ---------------------------------------------------------------- copies
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy-as]");
    if (!button || !form()) return;
    event.preventDefault();
    const line = document.getElementById("copied"), fold = document.getElementById("copied-text");
    const say = (words, fault = false) => {
      line.textContent = words;
      line.className = fault ? "wrong" : "";
    };
    const texts = new FormData(form());
    texts.append("action", button.value);
    fold.hidden = true;
    say("…");
    let answer;
    try {
      const response = await fetch(address(), { method: "POST", body: texts, headers: { Accept: "application/json" } });
      answer = await response.json();
    } catch {
      return say("✕ No answer came. Nothing was copied; try again.", true);
    }
    if (!answer.text) return say(`✕ Nothing was copied. ${(answer.faults ?? []).join(" ")}`, true);
    try {
      await navigator.clipboard.writeText(answer.text);
      say(`✓ Copied as ${button.dataset.copyAs}.`);
    } catch { // a page without TLS has no clipboard
      fold.querySelector("pre").textContent = answer.text;
      [fold.hidden, fold.open] = [false, true];
      getSelection().selectAllChildren(fold.querySelector("pre"));
      say("The browser gives no clipboard here: the text below is selected, press Ctrl+C.");
    }
  });

  // What the form may start from is folded away below it.
  const unfold = () => {
    const aim = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (aim?.matches("details")) aim.open = true;
    aim?.querySelector("select, textarea")?.focus();
    if (aim?.matches("select")) aim.focus();
  };
  addEventListener("hashchange", unfold);

  unfold();
  saved();
})();
