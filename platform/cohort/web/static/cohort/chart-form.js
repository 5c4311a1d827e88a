// The search box over the metrics of a chart's form. Without it all of them are listed.
(() => {
  const form = document.getElementById("chart-form");
  const box = form?.querySelector("[data-search]");
  if (!box) return;
  box.hidden = false;
  const input = box.querySelector("input"), none = form.querySelector("[data-none]");
  const choices = [...form.querySelectorAll(".metric-choices label")];
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const choice of choices) {
      const name = choice.textContent.toLowerCase();
      choice.hidden = !words.every((word) => name.includes(word)) && !choice.querySelector("input").checked;
    }
    none.hidden = choices.some((choice) => !choice.hidden);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault(); // searching sends nothing
  });
})();
