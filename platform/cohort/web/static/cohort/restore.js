// What was typed into a form outlives the end of a session: it is kept in this window while a person is sent to sign in or
// refused as out of date, and put back when the same person comes to the same page. Passwords, files and hidden fields are
// never kept; nothing is after a sign-out, or for anybody else. No page depends on it.
(() => {
  const KEPT = "unsent-forms";
  const user = document.body.dataset.user; // none: signed out, or a refusal's page
  const page = location.pathname + location.search;
  const signOuts = new BroadcastChannel("cohort-sign-out");
  let signedOut = false;
  const forget = () => {
    signedOut = true;
    sessionStorage.removeItem(KEPT);
  };
  signOuts.addEventListener("message", forget); // in another window of this browser

  // By attribute: a control of that name would hide the form's own property.
  const forms = () => {
    const counts = {};
    return [...document.querySelectorAll("form[method=post]")].map((form) => {
      const address = form.getAttribute("id") ?? form.getAttribute("action") ?? "";
      counts[address] = (counts[address] ?? 0) + 1;
      return [`${address} ${counts[address]}`, form];
    });
  };
  const UNKEPT = ["hidden", "password", "file", "submit", "button", "reset", "image", "fieldset", "output"];
  const controls = (form) => [...form.elements].filter(({ name, type }) => name && !UNKEPT.includes(type));
  const isChoice = ({ type }) => type === "checkbox" || type === "radio";
  const state = (control) => {
    if (isChoice(control)) return control.checked;
    return control.options ? [...control.options].filter((option) => option.selected).map((option) => option.value) : control.value;
  };
  const isChanged = (control) => {
    if (isChoice(control)) return control.checked !== control.defaultChecked;
    if (!control.options) return control.value !== control.defaultValue;
    // A list without a default has its first option chosen.
    const options = [...control.options], given = options.some((option) => option.defaultSelected);
    return options.some((option, index) => option.selected !== (given || control.multiple ? option.defaultSelected : index === 0));
  };
  // A form that came back with faults holds what was typed as its defaults.
  const isTyped = (form) => controls(form).some(isChanged) || form.querySelector(".error-text") !== null;
  const rowNumbers = (form) => [...form.querySelectorAll("[data-row]")].map((row) => Number(row.dataset.row));

  const keep = () => {
    const typed = forms().filter(([, form]) => isTyped(form)).map(([key, form]) => {
      const fields = controls(form).map((control) => [control.name, isChoice(control) ? control.value : null, state(control)]);
      return { key, fields, rows: rowNumbers(form) };
    });
    if (!typed.length) return;
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ user, page, forms: typed }));
    } catch { // larger than the browser keeps: said when the person is back
      sessionStorage.setItem(KEPT, JSON.stringify({ user, page, forms: [] }));
    }
  };

  const say = (place, words) => {
    const line = document.createElement("p");
    line.className = "toast";
    line.setAttribute("role", "status");
    line.textContent = words;
    place.prepend(line);
    line.scrollIntoView({ block: "center" });
  };

  // Rows as they were, by the form's own button; it gives the first free number.
  const restoreRows = (form, numbers) => {
    const adder = form.querySelector("[data-add-row]");
    if (!adder) return;
    while (Math.max(-1, ...rowNumbers(form)) < Math.max(-1, ...numbers)) adder.click();
    for (const row of form.querySelectorAll("[data-row]")) if (!numbers.includes(Number(row.dataset.row))) row.remove();
  };
  // All values before the first event: a list that brings other fields sends the values of those that stay. Leaves in
  // `fields` those that are not there yet.
  const fill = (form, fields) => {
    const changed = [];
    for (const control of controls(form)) {
      const value = isChoice(control) ? control.value : null;
      const index = fields.findIndex((field) => field[0] === control.name && field[1] === value);
      if (index < 0) continue;
      const [[, , kept]] = fields.splice(index, 1);
      if (JSON.stringify(state(control)) === JSON.stringify(kept)) continue;
      if (isChoice(control)) control.checked = kept;
      else if (control.options) for (const option of control.options) option.selected = kept.includes(option.value);
      else control.value = kept;
      changed.push(control);
    }
    for (const control of changed)
      for (const name of ["input", "change"]) control.dispatchEvent(new Event(name, { bubbles: true }));
    for (let fold = changed[0]?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    return changed.length > 0;
  };

  // A form that is opened in a dialog, and fields that a list brings, are filled when they come.
  const restore = (kept) => {
    const content = document.querySelector(".page-in");
    if (!kept.forms.length) return say(content, "What you had typed was too long for this browser to keep.");
    const waiting = new Map(kept.forms.map(({ key, ...rest }) => [key, rest]));
    const fillShown = () => {
      for (const [key, form] of forms()) {
        const { rows, fields } = waiting.get(key) ?? { fields: [] };
        if (!fields.length) continue;
        if (rows) restoreRows(form, rows);
        waiting.set(key, { fields });
        setTimeout(() => { // once htmx knows the added rows
          if (fill(form, fields) && rows) say(form, "Restored what you had typed. It is not sent yet.");
        });
      }
    };
    fillShown();
    if ([...waiting.values()].some(({ rows }) => rows)) say(content, "What you had typed is put back when you open that form again.");
    document.addEventListener("htmx:afterSettle", fillShown);
  };

  const kept = JSON.parse(sessionStorage.getItem(KEPT));
  if (!user) {
    if (kept) sessionStorage.setItem(KEPT, JSON.stringify({ ...kept, lost: true }));
    return;
  }
  if (kept && (kept.user !== user || !kept.lost)) sessionStorage.removeItem(KEPT); // sent, left, or another person's
  else if (kept?.page === page) {
    sessionStorage.removeItem(KEPT);
    addEventListener("load", () => restore(kept));
  }
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-sign-out]")) return;
    forget();
    signOuts.postMessage("");
  });
  addEventListener("pagehide", () => { if (!signedOut) keep(); });
})();
