// The desk of alerts by keyboard (j, k, x), and choosing every alert of the page. Without it the desk is a plain form.
(() => {
  const rows = [...document.querySelectorAll("#alert-rows tbody tr")];
  const boxes = rows.map((row) => row.querySelector('input[name="alert"]')).filter(Boolean);
  const page = document.getElementById("choose-page");

  const show = () => {
    const count = boxes.filter((box) => box.checked).length;
    page.checked = count > 0 && count === boxes.length;
    page.indeterminate = count > 0 && count < boxes.length;
  };
  if (page) {
    page.hidden = false;
    document.addEventListener("change", (event) => {
      if (event.target === page) for (const box of boxes) box.checked = page.checked;
      show();
    });
    show();
  }

  const go = (index) => {
    rows[index]?.querySelector("th a").focus();
    rows[index]?.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest('input:not([type="checkbox"]), select, textarea, dialog')) return;
    const here = rows.findIndex((row) => row.contains(document.activeElement));
    switch (event.key) {
      case "j": go(here + 1); break;
      case "k": go(here < 0 ? rows.length - 1 : here - 1); break;
      case "x": if (here < 0 || !boxes.length) return; boxes[here].click(); break;
      default: return;
    }
    event.preventDefault();
  });
})();
