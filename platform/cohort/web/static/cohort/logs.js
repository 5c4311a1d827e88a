// Keeps the newest lines of a log in sight while it is followed, and the page small. The lines come by htmx.
(() => {
  const MOST = 5000; // lines kept in the page; earlier ones are a link away
  const log = document.getElementById("log");
  const label = document.querySelector("[data-follow]"), box = label?.querySelector("input");
  if (!log) return;
  const toEnd = () => (log.scrollTop = log.scrollHeight);
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target) target.scrollIntoView({ block: "center" });
  if (!box) return;
  label.hidden = false;
  if (target) box.checked = false;
  if (box.checked) toEnd();
  box.addEventListener("change", () => box.checked && toEnd());
  // Who scrolls up reads; who scrolls to the end follows again.
  log.addEventListener("scroll", () => {
    box.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.requestConfig.elt.id !== "log-more") return;
    const lines = log.getElementsByClassName("log-line");
    if (box.checked) {
      while (lines.length > MOST) lines[0].remove();
      toEnd();
    }
    if (!document.getElementById("log-more")) label.remove(); // the attempt has ended
  });
})();
