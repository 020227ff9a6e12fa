// A metric along one axis, through the selected shape.

function makeLines(explorer, part) {
  const { state, data } = explorer,
    run = state.shown,
    axis = state.axis;
  if (state.place === undefined) return part.replaceChildren();
  const places = run.along[axis][state.place];
  const names = [state.baseline, ...state.candidates].filter(
    (name) =>
      state.claim !== "claimable" ||
      name === state.baseline ||
      places.some((place) => verdictAt(state, place, name)?.kind === "faster, claimable"),
  );
  const lines = names
    .map((name) => ({ name, points: places.map((place) => pointAt(state, place, name, data.metrics)).filter(Boolean) }))
    .filter(({ points }) => points.length);
  const title = data.metrics[state.metric].axis;
  const start = [h("h2", {}, `Along ${AXES[axis]}`)];
  const where = run.shapes[state.place].label;
  if (!lines.length) {
    const nothing = `Nothing has a ${data.metrics[state.metric].title} here, ${run.timings[state.timing].words}.`;
    part.replaceChildren(...start, notice(nothing));
    return;
  }
  const alone = places.length < 2 ? ` No other shape differs from it in this axis alone.` : "";
  const whiskers =
    state.by === "pooled" ? `whiskers are ${data.confidence} intervals` : `a thin line for each replicate`;
  start.push(
    h("p", {}, `Through ${where}, ${run.timings[state.timing].words}; ${whiskers}.${alone} Axes are logarithmic.`),
  );
  const width = Math.max(280, part.clientWidth || 600),
    height = Math.min(380, Math.max(260, 90 + 17 * lines.length));
  const longest = Math.max(...lines.map(({ name }) => name.length));
  const [left, right, top, bottom] = [
    52,
    width - Math.min(width * 0.36, 14 + 5.8 * Math.min(longest, 22)),
    24,
    height - 38,
  ];
  const ends = lines
    .flatMap(({ points }) =>
      points.flatMap((point) => [
        point.low ?? point.value,
        point.high ?? point.value,
        ...(state.by === "replicate" ? point.replicates : []),
      ]),
    )
    .filter((value) => value > 0);
  const y = scale(ends, [bottom, top], { log: true, around: state.metric === "speedup" ? 1 : undefined });
  const sizes = places.map((place) => run.shapes[place][axis]);
  const x = scale(sizes, [left, right], { log: true });
  const svg = frame(
    width,
    height,
    `${title} over ${AXES[axis]}, a line for each of ${names.length} implementations; the table below has the numbers`,
  );
  svg.append(...yAxis(y, left, right, title, 12));
  let edge = -Infinity;
  for (const size of distinct(sizes)) {
    const room = 6.6 * String(size).length + 6;
    svg.append(s("line", { x1: x(size), x2: x(size), y1: bottom, y2: bottom + 4, class: "axis" }));
    if ((isOdd(axis, size) && !sizes.every((one) => isOdd(axis, one))) || x(size) - room / 2 < edge) continue;
    svg.append(s("text", { x: x(size), y: bottom + 15, "text-anchor": "middle" }, String(size)));
    edge = x(size) + room / 2;
  }
  svg.append(s("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle", class: "title" }, AXES[axis]));
  if (state.metric === "speedup") svg.append(s("line", { x1: left, x2: right, y1: y(1), y2: y(1), class: "one" }));
  for (const { name, points } of lines) svg.append(drawnLine(explorer, name, points, x, y));
  svg.append(...endLabels(explorer, lines, x, y, right, top, bottom));
  const rows = lines.flatMap(({ name, points }) =>
    points.map((point) => [name, String(point.size), point.words, String(point.samples), point.clock, point.throttled]),
  );
  part.replaceChildren(
    ...start,
    svg,
    h(
      "details",
      {},
      h("summary", {}, "The same as a table"),
      table(["implementation", AXES[axis], title, "n", "SM clock", "throttled"], rows, "numbers of the lines"),
    ),
  );
}

function pointAt(state, place, name, metrics) {
  const run = state.shown,
    row = caseAt(state, place, name);
  if (row === undefined) return undefined;
  const { cases } = run,
    common = {
      place,
      size: run.shapes[place][state.axis],
      samples: cases.samples[row],
      clock: cases.clock[row],
      throttled: cases.throttled[row],
    };
  if (state.metric === "speedup") {
    const verdict = verdictAt(state, place, name);
    if (!verdict) return undefined;
    return {
      ...common,
      value: verdict.speedup,
      low: verdict.low,
      high: verdict.high,
      replicates: verdict.replicates,
      words: judged(verdict),
    };
  }
  const value = cases[state.metric][row];
  if (value === null) return undefined;
  const median = cases.latency[row],
    of = (us) => (us > 0 ? (state.metric === "latency" ? us : (value * median) / us) : undefined);
  const words = `${state.metric === "latency" ? cases.interval[row] : cases[`${state.metric} text`][row]}${metrics[state.metric].suffix}`;
  return {
    ...common,
    value,
    low: of(cases.low_us[row]),
    high: of(cases.high_us[row]),
    replicates: cases.replicates_us[row].map(of),
    words,
  };
}

// A length that is no power of two fills no whole tiles: a case of its own, no step on the way from one to the next.
const isOdd = (axis, size) => axis === "seq_len" && !Number.isInteger(Math.log2(size));

function drawnLine(explorer, name, points, x, y) {
  const { state } = explorer,
    colour = explorer.colour(name),
    group = s("g", { style: `color: ${colour}`, class: name === state.candidate ? "line chosen" : "line" });
  const joined = points.filter(({ size }) => !isOdd(state.axis, size));
  const path = (of) => `M${joined.map((point) => `${x(point.size).toFixed(1)},${y(of(point)).toFixed(1)}`).join("L")}`;
  if (state.by === "replicate") {
    const most = Math.max(...points.map((point) => point.replicates.length));
    for (let replicate = 0; replicate < most; replicate++) {
      const there = joined.filter((point) => point.replicates[replicate] > 0);
      if (there.length)
        group.append(
          s("path", {
            class: "thin",
            d: `M${there.map((point) => `${x(point.size).toFixed(1)},${y(point.replicates[replicate]).toFixed(1)}`).join("L")}`,
          }),
        );
    }
  }
  if (joined.length) group.append(s("path", { d: path((point) => point.value) }));
  for (const point of points) {
    if (state.by === "pooled" && point.low > 0 && point.high > 0)
      group.append(
        s("line", { class: "whisker", x1: x(point.size), x2: x(point.size), y1: y(point.low), y2: y(point.high) }),
      );
    const lines = [
      `${name}, ${explorer.state.shown.shapes[point.place].label}`,
      point.words,
      `n = ${point.samples}, SM clock ${point.clock}, throttled ${point.throttled}`,
    ];
    group.append(
      s("circle", { class: "dot", cx: x(point.size), cy: y(point.value), r: 3 }),
      s("circle", {
        class: "touch",
        cx: x(point.size),
        cy: y(point.value),
        r: 9,
        onpointermove: (event) => explorer.point(event, lines),
        onpointerleave: () => (explorer.tip.hidden = true),
        onclick: () =>
          explorer.select({
            shape: explorer.state.shown.shapes[point.place].name,
            candidate: name === state.baseline ? undefined : name,
          }),
      }),
    );
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
  return labels.map(({ name, at, wanted, from }) =>
    s(
      "g",
      { style: `color: ${explorer.colour(name)}` },
      s("path", { class: "lead", d: `M${from.toFixed(1)},${wanted.toFixed(1)}L${right + 8},${at.toFixed(1)}` }),
      s(
        "text",
        { x: right + 11, y: at + 3.5, class: "name" },
        name.length > 22 ? `${name.slice(0, 21)}…` : name,
        s("title", {}, name),
      ),
    ),
  );
}
