// What every page needs beyond htmx: the theme switch, quiet polling, what forms do meanwhile, and what went wrong. No page
// depends on it.
(() => {
  const root = document.documentElement;

  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  const nameSwitch = () => {
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.hidden = false;
      button.textContent = dark() ? "Light theme" : "Dark theme";
    }
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.hasAttribute("data-theme-switch")) {
      root.dataset.theme = dark() ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
      nameSwitch();
      // Charts draw their own colours and listen for this.
      document.dispatchEvent(new CustomEvent("cohort:theme"));
    }
    if (button.hasAttribute("data-add-row")) {
      event.preventDefault(); // without JavaScript the button asks the server for one more row
      addRow(button.dataset.addRow);
    }
    if (button.hasAttribute("data-remove-row")) {
      event.preventDefault();
      removeRow(button.closest("[data-row]"));
    }
  });

  // A form row that repeats: <template id=X> beside <div data-rows=X>; the first free number takes __n__'s place,
  // and counted from 1 __place__'s.
  const addRow = (name) => {
    const rows = document.querySelector(`[data-rows="${name}"]`);
    const taken = [...rows.querySelectorAll("[data-row]")].map((row) => Number(row.dataset.row));
    const number = Math.max(-1, ...taken) + 1;
    const html = document.getElementById(name).innerHTML.replaceAll("__n__", String(number)).replaceAll("__place__", String(number + 1));
    rows.insertAdjacentHTML("beforeend", html);
    rows.lastElementChild.querySelector("input, select")?.focus();
  };
  // Whoever works by keyboard moves on to the row beside it, or where a row is added.
  const removeRow = (row) => {
    const rows = row.parentElement, beside = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    (beside?.querySelector("[data-remove-row]") ?? document.querySelector(`[data-add-row="${rows.dataset.rows}"]`))?.focus();
  };

  // What is said beneath a field is swapped in by itself; the field must then say the same to a screen reader.
  document.addEventListener("htmx:afterSettle", () => {
    for (const said of document.querySelectorAll(".said")) {
      const field = document.querySelector(`[aria-describedby="${said.id}"]`);
      if (said.querySelector(".error-text")) field?.setAttribute("aria-invalid", "true");
      else field?.removeAttribute("aria-invalid");
    }
  });

  // A preset or a measurement that is asked for brings what a check would, and gives up the one under way. One that
  // waited behind that must not be sent first: its answer would take the button along, or the preset's form.
  let overtaken = false;
  document.addEventListener("htmx:confirm", (event) => {
    const { target } = event;
    if (target.matches("[hx-sync='closest form:replace']")) {
      overtaken = true;
      setTimeout(() => (overtaken = false)); // by then the other is given up
    } else if (target.id === "run-form" && (overtaken || target.querySelector("[name=preset].htmx-request"))) event.preventDefault();
  });

  // Nor is anything swapped away by itself between a press and its end: that would make no click. What is polled comes
  // again, and the check is made again. Only of what is clicked: the press on a scroll bar or a list has no end here.
  let pressed = false, missed = null;
  document.addEventListener("pointerdown", (event) => {
    pressed = event.button === 0 && event.target.closest("a, button, summary, label") !== null;
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { elt } = event.detail.requestConfig;
    if (!pressed || !elt.matches("[data-poll], [hx-trigger^=every], #run-form")) return;
    event.detail.shouldSwap = false;
    if (elt.id === "run-form") missed = elt;
  });
  const released = () => setTimeout(() => { // after the click
    if (missed?.isConnected) htmx.trigger(missed, "change");
    [pressed, missed] = [false, null];
  });
  for (const ending of ["pointerup", "pointercancel", "contextmenu"]) document.addEventListener(ending, released);
  addEventListener("blur", released);

  // A press whose answer takes long is answered at once, in the button's own words, and sent once.
  const working = new Map(); // button → its label
  document.addEventListener("submit", (event) => {
    const { target: form, submitter: button } = event;
    if (!button?.dataset.working) return;
    if (form.querySelector("[aria-busy=true]")) return void event.preventDefault();
    button.setAttribute("aria-busy", "true");
    for (const each of form.querySelectorAll("[data-working]")) working.set(each, each.textContent);
    button.textContent = button.dataset.working;
    setTimeout(() => { // once the form is sent: a disabled button is no part of it
      for (const each of form.querySelectorAll("[data-working]")) each.disabled = true;
    });
  });
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return; // Back brought the page as it was left
    for (const [button, label] of working) {
      [button.disabled, button.textContent] = [false, label];
      button.removeAttribute("aria-busy");
    }
    working.clear();
  });

  // What a person asked for and did not get is told at the foot of the window, until something asked for comes. What is
  // polled comes again by itself.
  const byItself = (event) => event.detail.requestConfig.elt.matches("[data-poll], [hx-trigger^=every]");
  const trouble = document.createElement("p");
  trouble.className = "toast error trouble";
  trouble.setAttribute("role", "alert");
  trouble.hidden = true;
  document.body.append(trouble);
  const tell = (event, words) => {
    if (byItself(event)) return;
    const { elt } = event.detail.requestConfig; // a list goes back: to choose the same again would be no change
    if (elt.matches("select")) for (const option of elt.options) option.selected = option.defaultSelected;
    trouble.textContent = words;
    trouble.hidden = false;
  };
  document.addEventListener("htmx:sendError", (event) =>
    tell(event, "No answer came: the server or the network is down. What you asked for may not have happened; what you typed is still here. Try again."));
  document.addEventListener("htmx:responseError", (event) => {
    const { responseText, status } = event.detail.xhr; // an error's page says what it is and what to do
    const page = new DOMParser().parseFromString(responseText, "text/html");
    const lines = [...page.querySelectorAll("main :is(h1, h2, p):not(.muted, :has(a))")].map((line) => line.textContent.trim());
    tell(event, lines.map((line) => (/[.?!]$/.test(line) ? line : `${line}.`)).join(" ") || `The server refused (status ${status}). Reload the page and try again.`);
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful && !byItself(event)) trouble.hidden = true;
  });

  // A tab nobody looks at asks for nothing; its next turn comes when it is looked at again.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && !event.detail.requestConfig.triggeringEvent) event.preventDefault();
  });

  // Browsers without ::details-content cannot show a closed menu on a wide screen.
  if (!CSS.supports("selector(::details-content)") && matchMedia("(min-width: 800px)").matches) {
    for (const menu of document.querySelectorAll("details.menu")) menu.open = true;
  }

  nameSwitch();
})();
