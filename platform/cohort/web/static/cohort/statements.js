// Drafts of answers beyond htmx: what was typed last when the page is left, and what another window changed. Without it
// drafts are kept by the button.
(() => {
  const form = document.getElementById("answers");
  if (!form) return;
  const channel = "BroadcastChannel" in window ? new BroadcastChannel("cohort-statements") : null;
  const own = form.elements.window.value;
  const unsent = new Set(); // the parts of the form that were changed since they were last sent
  const part = (event) => event.target.closest?.("[data-answer]");

  document.addEventListener("input", (event) => {
    if (!part(event)) return;
    unsent.add(part(event));
    // Words that were changed are no longer the project's.
    part(event).querySelector("input[name$='-standing']")?.remove();
  });
  document.addEventListener("htmx:beforeRequest", (event) => unsent.delete(part(event)));
  for (const trouble of ["htmx:sendError", "htmx:responseError", "htmx:sendAbort"])
    document.addEventListener(trouble, (event) => { if (part(event)) unsent.add(part(event)); });

  document.addEventListener("htmx:afterSettle", (event) => {
    const answer = part(event)?.querySelector("[data-draft]");
    if (!answer) return;
    const { draft, window: saver, revision } = answer.dataset;
    channel?.postMessage({ page: location.pathname, draft, saver, revision: Number(revision) });
  });
  channel?.addEventListener("message", ({ data }) => {
    if (data.page !== location.pathname || data.saver === own) return;
    const state = document.getElementById(`${data.draft}-draft`);
    if (!state || data.revision <= Number(state.dataset.revision ?? 0)) return; // older than this window's
    state.textContent = "! Changed in another window: reload to see it. What you change here takes its place.";
    state.classList.add("suspect");
  });

  let sent = false;
  form.addEventListener("submit", (event) => {
    const { question } = event.submitter?.dataset ?? {};
    if (question && !confirm(question)) event.preventDefault();
    else sent = true;
  });
  // What was typed last goes with the form.
  document.addEventListener("htmx:beforeRequest", (event) => { if (sent && part(event)) event.preventDefault(); });
  addEventListener("pageshow", () => (sent = false));
  addEventListener("pagehide", () => {
    if (sent || !unsent.size) return;
    const texts = new FormData();
    texts.append("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    texts.append("action", "draft");
    texts.append("window", own);
    for (const answer of unsent)
      for (const input of answer.querySelectorAll("input, textarea, select"))
        if (!["radio", "checkbox"].includes(input.type) || input.checked) texts.append(input.name, input.value);
    navigator.sendBeacon(location.href, texts);
    unsent.clear();
  });

  // An address that names a question comes to it open.
  const unfold = () => {
    const aim = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (aim?.matches("details")) aim.open = true;
    aim?.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
