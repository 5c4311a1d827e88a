// Sets the chosen theme before the first paint; without a choice the system's preference holds (tokens.css).
// Loaded blocking and kept tiny for that reason.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
