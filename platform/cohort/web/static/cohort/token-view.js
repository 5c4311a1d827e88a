// Keys of the token view: arrows move over the window's tokens, a panel shows all numbers of the current one, c goes to
// the next clipped token. Without it the numbers are in each token's title and in the table.
(() => {
  const strip = document.getElementById("tokens");
  if (!strip) return;
  const tokens = [...strip.children], panel = document.getElementById("token-numbers");
  const first = Number(tokens[0].id.slice(1));
  let current = Number(strip.dataset.at) - first;

  const show = (index, focus = true) => {
    tokens[current].removeAttribute("tabindex");
    current = Math.min(Math.max(index, 0), tokens.length - 1);
    const token = tokens[current];
    token.tabIndex = 0;
    panel.hidden = false;
    panel.textContent = token.title;
    if (focus) token.focus({ preventScroll: true });
    if (focus) token.scrollIntoView({ block: "nearest" });
  };
  const nextClipped = () => {
    const index = tokens.findIndex((token, at) => at > current && token.classList.contains("clip"));
    if (index >= 0) show(index);
    else if (strip.dataset.beyond) location.assign(strip.dataset.beyond);
  };
  const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 };

  document.getElementById("token-keys").hidden = false;
  show(current, location.hash === `#t${strip.dataset.at}`);
  strip.addEventListener("click", (event) => {
    const token = event.target.closest(".tok");
    if (token) show(tokens.indexOf(token));
  });
  strip.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in MOVES) show(current + MOVES[event.key]);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(tokens.length - 1);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => { // wherever the focus is, but where text is typed
    const typed = event.target.closest("input, select, textarea");
    if (event.key === "c" && !typed && !event.ctrlKey && !event.metaKey && !event.altKey) nextClipped();
  });
})();
