// A metric along one axis, through the selected shape.

// Smaller speedups would squeeze those near 1 into a band: they aren't drawn where there are larger ones.
const LEAST_SPEEDUP = 0.25;

function makeLines(explorer, part) {
  const { state, data } = explorer,
    { shown: run, axis, metric } = state;
  if (state.place === undefined) return part.replaceChildren();
  const places = run.along[axis][state.place],
    isClaimable = (name) => places.some((place) => verdictAt(state, place, name)?.kind === "faster, claimable");
  const names = [state.baseline, ...state.candidates].filter(
    (name) => state.claim !== "claimable" || name === state.baseline || isClaimable(name),
  );
  const every = names
    .map((name) => ({ name, points: places.map((place) => pointAt(state, place, name, data.metrics)).filter(Boolean) }))
    .filter(({ points }) => points.length);
  const title = data.metrics[metric].axis,
    start = h("h2", {}, `Along ${AXES[axis]}`),
    { words } = run.timings[state.timing];
  const low = ({ value }) => metric === "speedup" && value < LEAST_SPEEDUP,
    near = every
      .map(({ name, points }) => ({ name, points: points.filter((point) => !low(point)) }))
      .filter(({ points }) => points.length),
    lines = near.length ? near : every,
    below = near.length ? every.filter(({ points }) => points.some(low)).map(({ name }) => name) : [];
  if (!lines.length)
    return part.replaceChildren(start, notice(`Nothing has a ${data.metrics[metric].title} here, ${words}.`));
  const alone = places.length < 2 ? ` No other shape differs from it in this axis alone.` : "",
    whiskers = state.by === "pooled" ? `whiskers are ${data.confidence} intervals` : `a thin line for each replicate`,
    through = `Through ${run.shapes[state.place].label}, ${words}; ${whiskers}.${alone} Axes are logarithmic.${below.length ? ` Where below ${LEAST_SPEEDUP}, in the table alone: ${listed(below)}.` : ""}`;
  const width = Math.max(280, part.clientWidth || 600),
    height = Math.min(380, Math.max(260, 90 + 17 * lines.length)),
    longest = Math.max(...lines.map(({ name }) => name.length)),
    room = Math.min(width * 0.36, 23 + 5.8 * Math.min(longest, 22));
  const [left, right, top, bottom] = [52, width - room, 24, height - 38];
  const each = (point) => (state.by === "replicate" ? point.replicates : []),
    ends = ({ value, low, high }) => [low ?? value, high ?? value];
  const values = lines.flatMap(({ points }) => points.flatMap((point) => [...ends(point), ...each(point)]));
  const positive = values.filter((value) => value > 0),
    around = metric === "speedup" ? 1 : undefined,
    sizes = places.map((place) => run.shapes[place][axis]);
  const y = scale(positive, [bottom, top], { log: true, around }),
    x = scale(sizes, [left, right], { log: true });
  const about = `a line for each of ${lines.length} implementations; the table below has the numbers`;
  const svg = frame(width, height, `${title} over ${AXES[axis]}, ${about}`);
  svg.append(...yAxis(y, left, right, title, 12));
  let edge = -Infinity;
  for (const size of distinct(sizes)) {
    const room = 6.6 * String(size).length + 6;
    svg.append(s("line", { x1: x(size), x2: x(size), y1: bottom, y2: bottom + 4, class: "axis" }));
    if ((isOdd(axis, size) && !sizes.every((one) => isOdd(axis, one))) || x(size) - room / 2 < edge) continue;
    svg.append(letters(x(size), bottom + 15, String(size), "middle"));
    edge = x(size) + room / 2;
  }
  svg.append(letters((left + right) / 2, height - 5, AXES[axis], "middle", { class: "title" }));
  if (around) svg.append(s("line", { x1: left, x2: right, y1: y(1), y2: y(1), class: "one" }));
  for (const { name, points } of lines) svg.append(drawnLine(explorer, name, points, x, y));
  svg.append(...endLabels(explorer, lines, x, y, right, top, bottom));
  const row = (name, { size, words, samples, clock, throttled }) => [
    name,
    `${size}`,
    words,
    `${samples}`,
    clock,
    throttled,
  ];
  const rows = every.flatMap(({ name, points }) => points.map((point) => row(name, point)));
  const titles = ["implementation", AXES[axis], title, "n", "SM clock", "throttled"],
    numbers = table(titles, rows, "numbers of the lines");
  const details = h("details", {}, h("summary", {}, "The same as a table"), numbers);
  part.replaceChildren(start, said(through), svg, details);
}

function pointAt(state, place, name, metrics) {
  const { shown: run, metric } = state,
    { cases } = run,
    row = caseAt(state, place, name);
  if (row === undefined) return undefined;
  const [samples, clock, throttled] = [cases.samples[row], cases.clock[row], cases.throttled[row]],
    common = { place, size: run.shapes[place][state.axis], samples, clock, throttled };
  if (metric === "speedup") {
    const verdict = verdictAt(state, place, name);
    if (!verdict) return undefined;
    const { speedup, low, high, replicates } = verdict;
    return { ...common, value: speedup, low, high, replicates, words: judged(verdict) };
  }
  const value = cases[metric][row];
  if (value === null) return undefined;
  const of = (us) => (us > 0 ? (metric === "latency" ? us : (value * cases.latency[row]) / us) : undefined),
    [low, high] = [of(cases.low_us[row]), of(cases.high_us[row])];
  const words = `${metric === "latency" ? cases.interval[row] : cases[`${metric} text`][row]}${metrics[metric].suffix}`;
  return { ...common, value, low, high, replicates: cases.replicates_us[row].map(of), words };
}

// A length that is no power of two fills no whole tiles: a case of its own, no step on the way from one to the next.
const isOdd = (axis, size) => axis === "seq_len" && !Number.isInteger(Math.log2(size));

function drawnLine(explorer, name, points, x, y) {
  const { state } = explorer,
    colour = explorer.colour(name),
    group = s("g", { style: `color: ${colour}`, class: name === state.candidate ? "line chosen" : "line" });
  const joined = points.filter(({ size }) => !isOdd(state.axis, size)),
    at = (size, value) => `${x(size).toFixed(1)},${y(value).toFixed(1)}`;
  const path = (style, of) => {
    const there = joined.filter((point) => of(point) > 0).map((point) => at(point.size, of(point)));
    if (there.length) group.append(s("path", { class: style, d: `M${there.join("L")}` }));
  };
  const most = state.by === "replicate" ? Math.max(...points.map(({ replicates }) => replicates.length)) : 0;
  for (let replicate = 0; replicate < most; replicate++) path("thin", ({ replicates }) => replicates[replicate]);
  path(undefined, ({ value }) => value);
  for (const { place, size, value, low, high, words, samples, clock, throttled } of points) {
    const shape = state.shown.shapes[place],
      [cx, cy] = [x(size), y(value)];
    if (state.by === "pooled" && low > 0 && high > 0)
      group.append(s("line", { class: "whisker", x1: cx, x2: cx, y1: y(low), y2: y(high) }));
    const lines = [`${name}, ${shape.label}`, words, `n = ${samples}, SM clock ${clock}, throttled ${throttled}`];
    const candidate = name === state.baseline ? undefined : name;
    const told = {
      onpointermove: (event) => explorer.point(event, lines),
      onpointerleave: () => (explorer.tip.hidden = true),
      onclick: () => explorer.select({ shape: shape.name, candidate }),
    };
    group.append(s("circle", { class: "dot", cx, cy, r: 3 }), s("circle", { class: "touch", cx, cy, r: 9, ...told }));
  }
  return group;
}

// The names at the ends of the lines, moved apart.
function endLabels(explorer, lines, x, y, right, top, bottom) {
  const labels = lines
    .map(({ name, points }) => ({ name, wanted: y(points.at(-1).value), from: x(points.at(-1).size) }))
    .sort((one, other) => one.wanted - other.wanted);
  const step = Math.min(13, (bottom - top + 12) / labels.length);
  let above = top - step;
  for (const label of labels) above = label.at = Math.max(label.wanted, above + step);
  let below = bottom + step + 4;
  for (const label of labels.toReversed()) below = label.at = Math.min(label.at, below - step);
  return labels.map(({ name, at, wanted, from }) => {
    const d = `M${from.toFixed(1)},${wanted.toFixed(1)}L${right + 8},${at.toFixed(1)}`,
      short = name.length > 22 ? `${name.slice(0, 21)}…` : name;
    const words = s("text", { x: right + 20, y: at + 3.5, class: "name" }, short, s("title", {}, name)),
      key = s("rect", { x: right + 10, y: at - 3.5, width: 7, height: 7, fill: "currentColor" });
    return s("g", { style: `color: ${explorer.colour(name)}` }, s("path", { class: "lead", d }), key, words);
  });
}
