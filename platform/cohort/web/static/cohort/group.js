// Keys on a group's page: j/k later and earlier group, n/p next and previous sample, g the step's groups, ? help.
// All of it is there as links too.
(() => {
  const cards = [...document.querySelectorAll("[data-sample]")];
  const help = document.getElementById("keys-help"), text = document.getElementById("keys-text");
  let at = cards.findIndex((card) => card.classList.contains("selected"));

  const choose = (index) => {
    if (index < 0 || index >= cards.length) return;
    cards[at]?.classList.remove("selected");
    cards[at]?.removeAttribute("aria-current");
    at = index;
    const card = cards[at];
    card.classList.add("selected");
    card.setAttribute("aria-current", "true");
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
    const url = new URL(location.href);
    url.searchParams.set("sample", card.dataset.sample);
    history.replaceState(null, "", url);
  };
  const follow = (id) => document.getElementById(id)?.click();
  const toggleHelp = () => {
    text.hidden = !text.hidden;
    help.setAttribute("aria-expanded", String(!text.hidden));
  };

  help.hidden = false;
  help.addEventListener("click", toggleHelp);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    switch (event.key) {
      case "j": follow("group-later"); break;
      case "k": follow("group-earlier"); break;
      case "n": choose(at + 1); break;
      case "p": choose(at < 0 ? cards.length - 1 : at - 1); break;
      case "g": document.querySelector(".crumbs li:nth-child(2) a")?.click(); break;
      case "?": toggleHelp(); break;
      default: return;
    }
    event.preventDefault();
  });
  if (at >= 0) cards[at].scrollIntoView({ block: "nearest" });
})();
