// What every page needs beyond htmx: the theme switch, quiet polling, and repeating form rows. No page depends on it.
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
    if (button.hasAttribute("data-remove-row")) button.closest("[data-row]").remove();
  });

  // A form row that repeats: <template id=X> beside <div data-rows=X>; the first free number takes __n__'s place.
  const addRow = (name) => {
    const rows = document.querySelector(`[data-rows="${name}"]`);
    const taken = [...rows.querySelectorAll("[data-row]")].map((row) => Number(row.dataset.row));
    const number = Math.max(-1, ...taken) + 1;
    const html = document.getElementById(name).innerHTML.replaceAll("__n__", String(number));
    rows.insertAdjacentHTML("beforeend", html);
    rows.lastElementChild.querySelector("input, select")?.focus();
  };

  // A tab nobody looks at asks for nothing; it asks at once when it is looked at again.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && !event.detail.requestConfig.triggeringEvent) event.preventDefault();
  });

  // Browsers without ::details-content cannot show a closed menu on a wide screen.
  if (!CSS.supports("selector(::details-content)") && matchMedia("(min-width: 800px)").matches) {
    for (const menu of document.querySelectorAll("details.menu")) menu.open = true;
  }

  nameSwitch();
})();
