// What a viewer chose of the charts of a run, kept in the page's address: opened again, it shows the same.
// A default is not in the address: of folded groups, axes and tables those are named that differ from it.
window.CohortView = (() => {
  const SETS = ["log", "hide", "fold", "table"]; // ids of charts, `chart:line`, ids of groups, ids of charts
  const OWN = ["x", "smooth", "from", "to", ...SETS];
  const whole = (text) => (/^[1-9]\d{0,15}$/.test(text ?? "") ? Number(text) : null);

  const read = () => {
    const query = new URLSearchParams(location.search), smooth = Number(query.get("smooth"));
    const view = {
      x: ["time", "tokens", "samples"].includes(query.get("x")) ? query.get("x") : "step",
      smooth: smooth > 0 && smooth < 1 ? Math.min(smooth, 0.99) : 0,
      from: whole(query.get("from")), to: whole(query.get("to")),
    };
    if (view.from !== null && view.to !== null && view.from > view.to) view.from = view.to = null;
    for (const name of SETS) view[name] = new Set(query.getAll(name));
    return view;
  };
  const write = (view) => {
    const address = new URL(location.href), query = address.searchParams;
    for (const name of OWN) query.delete(name);
    if (view.x !== "step") query.set("x", view.x);
    if (view.smooth) query.set("smooth", String(view.smooth));
    for (const name of ["from", "to"]) if (view[name] !== null) query.set(name, String(view[name]));
    for (const name of SETS) for (const value of view[name]) query.append(name, value);
    history.replaceState(history.state, "", address);
  };
  const flip = (set, value, on) => (on ? set.add(value) : set.delete(value));

  return { read, write, flip, ALL: "*" };
})();
