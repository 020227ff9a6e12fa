// The selected cell: statement, medians, samples over time, distribution.

const MOST_DOTS = 2000;

function makeCell(explorer, part) {
  const { state, data } = explorer,
    { shown: run, place, candidate } = state,
    title = h("h2", {}, "The selected cell");
  if (place === undefined) return part.replaceChildren(title, notice(NO_CELL));
  const baseline = baselineAt(state, place),
    where = `${run.shapes[place].label}, ${run.timings[state.timing].words}`,
    pair = said(`\`${candidate || "no candidate"}\` against \`${baseline}\` at ${where}`, { class: "selected" });
  const absent = [state.baseline, candidate].filter((name) => name && caseAt(state, place, name) === undefined);
  const why = absent.map((name) => notice(...rich(`\`${name}\` has no latency here: ${absence(run, place, name)}.`)));
  const rows = distinct([baseline, candidate])
    .map((name) => [name, caseAt(state, place, name)])
    .filter(([name, row]) => name && row !== undefined);
  const named = rows.map(([name]) => h("code", {}, name)),
    sides = data.sides.map(([title, column]) => [title, ...rows.map(([, row]) => String(run.cases[column][row]))]);
  const both = rows.length ? [table(["", ...named], sides, "both sides")] : [];
  const marks = distinct(rows.map(([, row]) => run.cases.marks[row])).filter(Boolean),
    notes = marks.map((mark) => h("p", { class: "note" }, mark));
  part.replaceChildren(
    title,
    pair,
    ...why,
    ...verdictOn(explorer),
    ...both,
    ...notes,
    ...distributions(explorer, part),
  );
}

// What the pages say of the verdict on the selected cell; nothing where there is none.
function verdictOn({ state, data }) {
  const verdict = verdictAt(state, state.place, state.candidate);
  if (!verdict) return [];
  if (!verdict.kind) return [said(`This is ${judged(verdict)}.`, { class: "statement" })];
  const { titles } = state.shown.verdicts[state.baseline];
  const rows = titles.map((title, place) => [defined(data, title), verdict.cells[place]]);
  return [
    said(stated(state, verdict) + onWorst(state, verdict), { class: "statement" }),
    said(verdict.power, { class: "power" }),
    table(["", h("code", {}, state.candidate)], rows, "the verdict"),
  ];
}

// The statement on the selected cell: its template, and what _elsewhere in recorded.py left out of it.
function stated(state, { statement, cells }) {
  const { shown, baseline, candidate, place } = state,
    pair = [baselineAt(state, place), candidate];
  const texts = {
    n: (which) => pair[which],
    m: (which) => shown.cases.interval[caseAt(state, place, pair[which])],
    c: (which) => cells[which],
    t: (timing) => verdictAt({ ...state, timing }, place, candidate).cells[0],
  };
  const template = shown.verdicts[baseline].statements[statement];
  return template.replace(/\{([nmct])(\d)\}/g, (_, of, which) => texts[of](Number(which)));
}

// How the candidate fares on the kind of values that is its worst at the selected shape, where the verdict is another.
function onWorst(state, { kind }) {
  const { shown, place, candidate } = state;
  const verdicts = shown.kindsAt[place].map((one) => [shown.shapes[one].values, verdictAt(state, one, candidate)]);
  const there = verdicts.filter(([, verdict]) => verdict);
  const [values, worst] = there.toSorted(([, one], [, other]) => one.speedup - other.speedup)[0] ?? [];
  const words = `the worst of ${there.length} kinds timed at this shape: **${worst?.kind}** (${worst?.cells[0]}).`;
  return worst && worst.kind !== kind ? ` On ${values} values, ${words}` : "";
}

function distributions(explorer, part) {
  const { state } = explorer,
    run = state.shown;
  const of = (place) => samplesOf(run, state.timing, state.place, place);
  const sides = distinct([baselineAt(state, state.place), state.candidate])
    .filter(Boolean)
    .map((name) => ({ name, colour: explorer.colour(name), replicates: of(run.implementations.indexOf(name)) }))
    .filter(({ replicates }) => replicates.length);
  if (!sides.length) return [notice("No samples of this cell are here.")];
  const control = state.baseline === run.baseline ? of(run.implementations.length) : [],
    again = { name: `${run.baseline} again (A/A)`, colour: "light-dark(#767676, #9a9a9a)", dashed: true };
  if (control.length) sides.push({ ...again, replicates: control });
  const width = Math.max(280, part.clientWidth || 400);
  const { most, error_pct: error } = run.sampled;
  const kept = most ? `At most ${most} samples of each replicate are drawn, evenly over it` : "Every sample is drawn";
  const rounded = `${kept}, rounded by at most ${Number(error.toPrecision(2))} %; curves are of what is drawn, the numbers above of all samples as recorded.`;
  return [
    h("h3", {}, "Samples in the order taken"),
    overTime(sides.slice(0, 2), width),
    h("h3", {}, "Distribution (ECDF)"),
    ecdf(sides, width, state.by),
    h("p", { class: "legend" }, sides.map(keyOf)),
    h("p", { class: "note" }, rounded),
  ];
}

function keyOf({ name, colour, dashed }) {
  const style = `border-top: 2px ${dashed ? "dashed" : "solid"} ${colour}`;
  return h("span", {}, h("span", { class: "stroke", style }), ` ${name}`);
}

const dot = (x, y) => `M${x.toFixed(1)},${y.toFixed(1)}h0`;

function overTime(sides, width) {
  const count = Math.max(...sides.map(({ replicates }) => replicates.length)),
    perRow = Math.min(count, Math.max(1, Math.floor((width - 46) / 62)));
  const [left, height, upper, lower] = [46, 196, [22, 128], [146, 176]];
  const rows = Math.ceil(count / perRow),
    each = (width - left) / perRow,
    every = sides.flatMap(({ replicates }) => replicates);
  const values = every.flatMap(({ latencies }) => endsOf(latencies)),
    log = Math.max(...values) > 3 * Math.min(...values),
    y = scale(values, [upper[1], upper[0]], { log });
  const known = distinct(every.flatMap(({ clocks }) => distinct(Array.from(clocks, (one) => one % THROTTLED)))).filter(
    Boolean,
  );
  const clock = known.length ? scale(known, [lower[1], lower[0]]) : undefined;
  const names = sides.map(({ name }) => name).join(" and "),
    below = clock ? ", with the SM clock below" : "";
  const svg = frame(width, height * rows, `Latency of ${names} over rounds in ${count} replicates${below}`);
  for (let row = 0; row < rows; row++) {
    const group = s("g", { transform: `translate(0, ${row * height})` });
    group.append(...yAxis(y, left, width, latencyTitle(log), 11));
    if (clock) {
      const ends = distinct(endsOf(known)).map((mhz) => letters(left - 5, clock(mhz) + 3.5, String(mhz), "end"));
      group.append(s("text", { x: left, y: 142, class: "title" }, "SM clock (MHz)"), ...ends);
    }
    for (let replicate = row * perRow; replicate < Math.min(count, (row + 1) * perRow); replicate++) {
      const from = left + (replicate - row * perRow) * each,
        here = sides.map(({ colour, replicates }) => ({ colour, ...replicates[replicate] })),
        there = here.filter(({ latencies }) => latencies);
      if (!there.length) continue;
      const most = Math.max(...there.map(({ latencies }) => latencies.length)),
        x = scale([0, Math.max(1, most - 1)], [from + 2, from + each - 4], { pad: 0 });
      group.append(s("line", { x1: from, x2: from, y1: upper[0] - 4, y2: lower[1], class: "grid" }));
      for (const side of there) group.append(...dots(side, x, y, clock));
      const words = each > 90 ? `replicate ${replicate}, ${there[0].seconds.toFixed(1)} s` : `r${replicate}`;
      group.append(letters(from + 3, height - 6, words));
    }
    svg.append(group);
  }
  const clocks = clock ? "SM clock below, red where the card throttled" : "the SM clock was not read";
  const note = `A dot for each sample that is drawn, replicates side by side; ${clocks}.`;
  return h("div", {}, svg, h("p", { class: "note" }, note));
}

// The samples of a replicate as dots, and below them those of its clock, apart where the card throttled.
function dots({ latencies, clocks, colour }, x, y, clock) {
  const step = Math.ceil(latencies.length / MOST_DOTS),
    [drawn, held, run] = [[], [], []];
  for (let place = 0; place < latencies.length; place += step) {
    drawn.push(dot(x(place), y(latencies[place])));
    const mhz = clocks[place] % THROTTLED;
    if (clock && mhz) (clocks[place] >= THROTTLED ? held : run).push(dot(x(place), clock(mhz)));
  }
  return [
    s("path", { class: "samples", style: `stroke: ${colour}`, d: drawn.join("") }),
    s("path", { class: "clock", d: run.join("") }),
    s("path", { class: "clock held", d: held.join("") }),
  ];
}

const latencyTitle = (log) => `latency (µs${log ? ", log" : ""})`;

function ecdf(sides, width, by) {
  const [left, right, top, bottom, height] = [46, width - 8, 22, 150, 186];
  const curves = sides.flatMap(({ colour, dashed, replicates }) => {
    const each = replicates.map(({ latencies }) => latencies),
      drawn = by === "replicate" ? each : [each.flat()];
    return drawn.map((values) => ({ colour, dashed, values: Float64Array.from(values).sort() }));
  });
  const ends = curves.flatMap(({ values }) => [values[0], values.at(-1)]),
    log = Math.max(...ends) > 3 * Math.min(...ends);
  const x = scale(ends, [left, right], { log, pad: 0.02 }),
    y = scale([0, 1], [bottom, top], { pad: 0 });
  const svg = frame(width, height, `Empirical distribution of ${sides.map(({ name }) => name).join(", ")}`);
  svg.append(...yAxis(y, left, right, "share of samples", 12));
  let edge = -Infinity;
  for (const value of x.ticks) {
    const room = 6.4 * plain(value).length;
    if (x(value) - room / 2 < edge || x(value) + room / 2 > width) continue;
    svg.append(letters(x(value), bottom + 14, plain(value), "middle"));
    edge = x(value) + room / 2 + 4;
  }
  svg.append(letters((left + right) / 2, height - 5, latencyTitle(log), "middle", { class: "title" }));
  for (const { colour, dashed, values } of curves) {
    const step = Math.ceil(values.length / MOST_DOTS),
      d = [`M${x(values[0]).toFixed(1)},${bottom}`];
    for (let place = 0; place < values.length; place += step)
      d.push(`H${x(values[place]).toFixed(1)}V${y((place + 1) / values.length).toFixed(1)}`);
    d.push(`H${x(values.at(-1)).toFixed(1)}V${y(1)}`);
    const style = `stroke: ${colour}${dashed ? "; stroke-dasharray: 5 3" : ""}`;
    svg.append(s("path", { class: "curve", style, d: d.join("") }));
  }
  return svg;
}
