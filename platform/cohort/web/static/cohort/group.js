// Keys where samples are judged. What a key does is what the element that names it (aria-keyshortcuts) does when it is
// clicked: one of the sample in focus first, then one of the page. All of it works without keys, and without this.
(() => {
  const cards = () => [...document.querySelectorAll("[data-sample]")];
  const current = () => document.querySelector("[data-sample].selected");
  // A card may hold others: equal samples are folded into one.
  const own = (card, selector) => [...card.querySelectorAll(selector)].find((each) => each.closest("[data-sample]") === card);
  const shortcut = (card, key) => own(card, `[aria-keyshortcuts="${CSS.escape(key)}"]`);
  const waiting = new Map(); // id of a card → keys that wait until what was pressed before is stored
  const judged = new Set(); // ids of cards whose verdict is under way

  const choose = (card) => {
    if (!card) return;
    for (const other of cards()) {
      other.classList.toggle("selected", other === card);
      if (other !== card) other.removeAttribute("aria-current");
    }
    card.setAttribute("aria-current", "true");
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
    if (card.hasAttribute("data-advances")) return; // its address is its own
    const url = new URL(location.href);
    url.searchParams.set("sample", card.dataset.sample);
    history.replaceState(null, "", url);
  };
  const step = (by) => {
    const all = cards(), at = all.indexOf(current());
    choose(at < 0 ? all.at(by < 0 ? -1 : 0) : all[at + by]);
  };
  const open = (card) => own(card, '.judgement[data-verdict=""] form') && !judged.has(card.id);
  const following = (card) => {
    const all = cards(), at = all.indexOf(card);
    return [...all.slice(at + 1), ...all.slice(0, at)].find(open);
  };

  const press = (card, key) => {
    const queue = waiting.get(card.id);
    if (queue) {
      if (!card.hasAttribute("data-advances")) queue.push(key); // else another sample comes, which nobody has read yet
      return;
    }
    waiting.set(card.id, []);
    shortcut(card, key).click();
  };
  const judge = (card, key) => {
    press(card, key);
    if (!"123".includes(key) || card.hasAttribute("data-advances")) return;
    judged.add(card.id);
    choose(following(card) ?? card);
  };
  const write = (card) => {
    own(card, "details.more").open = true;
    const field = own(card, "input[name=note]");
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  };
  const toggleHelp = () => {
    const help = document.getElementById("keys-help"), text = document.getElementById("keys-text");
    text.hidden = !text.hidden;
    help.setAttribute("aria-expanded", String(!text.hidden));
  };

  document.addEventListener("click", (event) => {
    if (event.target.closest("#keys-help")) toggleHelp();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
    const { key, target } = event;
    if (key === "Escape" && target.matches("[data-sample] input[name=note]")) {
      target.closest("details").open = false; // what was typed stays in the field
      choose(target.closest("[data-sample]"));
      return;
    }
    if (target.closest("input, select, textarea, [contenteditable]")) return;
    const card = current(), ofCard = card && shortcut(card, key);
    const ofPage = [...document.querySelectorAll("[aria-keyshortcuts]")].find(
      (element) => element.getAttribute("aria-keyshortcuts") === key && !element.closest("[data-sample]"),
    );
    if (ofCard?.matches("summary")) write(card);
    else if (ofCard) event.repeat || judge(card, key);
    else if (ofPage) event.repeat || ofPage.click();
    else if (key === "." || key === ",") step(key === "." ? 1 : -1);
    else return;
    event.preventDefault();
  });

  // What was pressed is stored, or was refused: then the sample is in focus again. The form may be gone by now.
  const sent = new WeakMap(); // request → id of the card
  document.addEventListener("htmx:beforeRequest", (event) => {
    const card = event.detail.elt.closest("[data-sample]");
    if (card) sent.set(event.detail.xhr, card.id);
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    const { successful, xhr } = event.detail, id = sent.get(xhr);
    if (id === undefined) return;
    const keys = waiting.get(id) ?? [], card = document.getElementById(id);
    judged.delete(id);
    waiting.delete(id);
    const noted = event.detail.requestConfig.triggeringEvent?.submitter?.name === "save";
    if (!successful || xhr.status === 422 || noted) choose(card);
    else if (keys.length && card) {
      press(card, keys.shift());
      waiting.get(id).push(...keys);
    }
    if (document.activeElement === document.body) choose(current() ?? document.querySelector("[data-advances]"));
  });

  const help = document.getElementById("keys-help");
  if (help) help.hidden = false;
  current()?.scrollIntoView({ block: "nearest" });
  choose(document.querySelector("[data-advances]"));
})();
