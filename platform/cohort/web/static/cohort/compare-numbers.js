// The numbers behind the curves of a comparison: how they are smoothed, averaged over seeds, and written. Knows no page.
window.compareNumbers = (() => {
  const number = (value) => {
    if (value === null || value === undefined) return "–";
    const tiny = value !== 0 && Math.abs(value) < 1e-4;
    return (tiny ? String(value.toExponential(3)).replace(/\.?0*e/, "e") : String(+value.toPrecision(4))).replaceAll("-", "−");
  };
  // An exponential mean without the bias of its first values.
  const smoothed = (values, weight) => {
    if (!weight) return values;
    let sum = 0, mass = 0;
    return values.map((value) => {
      sum = weight * sum + (1 - weight) * value;
      mass = weight * mass + 1 - weight;
      return sum / mass;
    });
  };
  const averaged = (members, kind, width) => {
    const [leader] = members, stretches = new Map();
    for (const member of members) {
      for (const point of member.points) {
        const at = Math.floor((point.step - 1) / width);
        if (!stretches.has(at)) stretches.set(at, []);
        stretches.get(at).push(point);
      }
    }
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
    const points = [...stretches.entries()].sort(([a], [b]) => a - b).map(([, parts]) => {
      const y = mean(parts.map((part) => part.y)), n = parts.length;
      const sd = n > 1 ? Math.sqrt(parts.reduce((sum, part) => sum + (part.y - y) ** 2, 0) / (n - 1)) : 0;
      const [low, high] = kind === "sd" ? [y - sd, y + sd] : [Math.min(...parts.map((part) => part.low)), Math.max(...parts.map((part) => part.high))];
      return { x: mean(parts.map((part) => part.x)), step: Math.max(...parts.map((part) => part.step)), y, low, high, n };
    });
    const seeds = members.map((member) => member.seed).join(", ");
    return { ...leader, name: `${leader.name}, mean of ${members.length} seeds (${seeds})`, points, band: true, members: members.length };
  };
  const ticks = (low, high, count) => {
    const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= rough);
    const made = [];
    for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) made.push(+(at * step).toPrecision(12));
    return made;
  };
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9) return number(value / 1e9) + " B";
    if (size >= 1e6) return number(value / 1e6) + " M";
    if (size >= 1e4) return number(value / 1e3) + " k";
    return number(value);
  };
  const nearest = (points, x) => {
    let [from, to] = [0, points.length - 1];
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (points[middle].x < x) from = middle;
      else to = middle;
    }
    return points.length && Math.abs(points[from].x - x) <= Math.abs(points[to].x - x) ? points[from] : points[to];
  };
  return { number, short, ticks, smoothed, averaged, nearest };
})();
