// Ctrl+Enter, or Cmd+Enter, sends the message. The form works without it.
(() => {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
    if (!event.target.matches("textarea[data-send]")) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  });
})();
