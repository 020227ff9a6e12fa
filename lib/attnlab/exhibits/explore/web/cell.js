// The selected cell: statement, medians, samples over time, distribution.

const MOST_DOTS = 2000;

function makeCell(explorer, part) {
  const { state, data } = explorer,
    run = state.shown,
    shape = run.shapes[state.place];
  if (!shape) return part.replaceChildren(h("h2", {}, "The selected cell"), notice(NO_CELL));
  const start = [
    h("h2", {}, "The selected cell"),
    said(
      `\`${state.candidate || "no candidate"}\` against \`${baselineAt(state, state.place)}\` at ${shape.label}, ${run.timings[state.timing].words}`,
      { class: "selected" },
    ),
  ];
  const absent = [state.baseline, state.candidate].filter(
    (name) => name && caseAt(state, state.place, name) === undefined,
  );
  const why = absent.map((name) =>
    notice(
      ...rich(
        `\`${name}\` has no latency here: ${run.absentAt.get(`${state.place}/${run.implementations.indexOf(name)}`) ?? "not under this timing"}.`,
      ),
    ),
  );
  const verdict = verdictAt(state, state.place, state.candidate);
  const words = verdict?.kind
    ? [
        said(stated(state, verdict) + onWorst(state, verdict), { class: "statement" }),
        said(verdict.power, { class: "power" }),
      ]
    : [];
  const rows = distinct([baselineAt(state, state.place), state.candidate])
    .map((name) => [name, caseAt(state, state.place, name)])
    .filter(([name, row]) => name && row !== undefined);
  const cases = rows.length
    ? [
        table(
          ["", ...rows.map(([name]) => h("code", {}, name))],
          data.sides.map(([title, column]) => [title, ...rows.map(([, row]) => String(run.cases[column][row]))]),
          "both sides",
        ),
      ]
    : [];
  if (verdict?.kind)
    cases.unshift(
      table(
        ["", h("code", {}, state.candidate)],
        run.verdicts[state.baseline].titles.map((title, place) => [defined(data, title), verdict.cells[place]]),
        "the verdict",
      ),
    );
  const marks = distinct(rows.map(([, row]) => run.cases.marks[row]))
    .filter(Boolean)
    .map((mark) => h("p", { class: "note" }, mark));
  part.replaceChildren(...start, ...why, ...words, ...cases, ...marks, ...distributions(explorer, part));
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
  const control = state.baseline === run.baseline ? of(run.implementations.length) : [];
  if (control.length)
    sides.push({
      name: `${run.baseline} again (A/A)`,
      colour: "light-dark(#767676, #9a9a9a)",
      replicates: control,
      dashed: true,
    });
  const width = Math.max(280, part.clientWidth || 400);
  const { most, error_pct: error } = run.sampled;
  const kept = most ? `At most ${most} samples of each replicate are drawn, evenly over it` : "Every sample is drawn";
  const rounded = `${kept}, rounded by at most ${Number(error.toPrecision(2))} %; curves are of what is drawn, the numbers above of all samples as recorded.`;
  return [
    h("h3", {}, "Samples in the order taken"),
    overTime(sides.slice(0, 2), width),
    h("h3", {}, "Distribution (ECDF)"),
    ecdf(sides, width, state.by),
    legendOf(sides),
    h("p", { class: "note" }, rounded),
  ];
}

const legendOf = (sides) =>
  h(
    "p",
    { class: "legend" },
    sides.map(({ name, colour, dashed }) =>
      h(
        "span",
        {},
        h("span", { class: "stroke", style: `border-top: 2px ${dashed ? "dashed" : "solid"} ${colour}` }),
        ` ${name}`,
      ),
    ),
  );

function overTime(sides, width) {
  const count = Math.max(...sides.map(({ replicates }) => replicates.length)),
    perRow = Math.min(count, Math.max(1, Math.floor((width - 46) / 62)));
  const [left, height, upper, lower] = [46, 196, [22, 128], [146, 176]];
  const rows = Math.ceil(count / perRow),
    each = (width - left) / perRow;
  const values = sides.flatMap(({ replicates }) =>
    replicates.flatMap(({ latencies }) => [
      latencies.reduce((one, other) => Math.min(one, other)),
      latencies.reduce((one, other) => Math.max(one, other)),
    ]),
  );
  const log = Math.max(...values) > 3 * Math.min(...values);
  const known = sides
    .flatMap(({ replicates }) =>
      replicates.flatMap(({ clocks }) => distinct(Array.from(clocks, (clock) => clock % THROTTLED))),
    )
    .filter(Boolean);
  const svg = frame(
    width,
    height * rows,
    `Latency of ${sides.map(({ name }) => name).join(" and ")} over rounds in ${count} replicates${known.length ? ", with the SM clock below" : ""}`,
  );
  for (let row = 0; row < rows; row++) {
    const group = s("g", { transform: `translate(0, ${row * height})` }),
      y = scale(values, [upper[1], upper[0]], { log });
    group.append(...yAxis(y, left, width, `latency (µs${log ? ", log" : ""})`, 11));
    const clock = known.length ? scale(known, [lower[1], lower[0]]) : undefined;
    if (clock) {
      const ends = distinct([Math.min(...known), Math.max(...known)]);
      group.append(
        s("text", { x: left, y: 142, class: "title" }, "SM clock (MHz)"),
        ...ends.map((mhz) => s("text", { x: left - 5, y: clock(mhz) + 3.5, "text-anchor": "end" }, String(mhz))),
      );
    }
    for (let replicate = row * perRow; replicate < Math.min(count, (row + 1) * perRow); replicate++) {
      const from = left + (replicate - row * perRow) * each,
        here = sides
          .map((side) => ({ colour: side.colour, ...side.replicates[replicate] }))
          .filter(({ latencies }) => latencies);
      if (!here.length) continue;
      const most = Math.max(...here.map(({ latencies }) => latencies.length)),
        x = scale([0, Math.max(1, most - 1)], [from + 2, from + each - 4], { pad: 0 });
      group.append(s("line", { x1: from, x2: from, y1: upper[0] - 4, y2: lower[1], class: "grid" }));
      for (const { latencies, clocks, colour } of here) {
        const step = Math.ceil(latencies.length / MOST_DOTS),
          d = [],
          held = [],
          run = [];
        for (let place = 0; place < latencies.length; place += step) {
          d.push(`M${x(place).toFixed(1)},${y(latencies[place]).toFixed(1)}h0`);
          const mhz = clocks[place] % THROTTLED;
          if (clock && mhz)
            (clocks[place] >= THROTTLED ? held : run).push(`M${x(place).toFixed(1)},${clock(mhz).toFixed(1)}h0`);
        }
        group.append(
          s("path", { class: "samples", style: `stroke: ${colour}`, d: d.join("") }),
          s("path", { class: "clock", d: run.join("") }),
          s("path", { class: "clock held", d: held.join("") }),
        );
      }
      group.append(
        s(
          "text",
          { x: from + 3, y: height - 6 },
          each > 90 ? `replicate ${replicate}, ${here[0].seconds.toFixed(1)} s` : `r${replicate}`,
        ),
      );
    }
    svg.append(group);
  }
  const note = h(
    "p",
    { class: "note" },
    `A dot for each sample that is drawn, replicates side by side${known.length ? "; SM clock below, red where the card throttled" : "; the SM clock was not read"}.`,
  );
  return h("div", {}, svg, note);
}

function ecdf(sides, width, by) {
  const [left, right, top, bottom, height] = [46, width - 8, 22, 150, 186];
  const curves = sides.map((side) => ({
    ...side,
    sorted: (by === "replicate"
      ? side.replicates.map(({ latencies }) => latencies)
      : [side.replicates.flatMap(({ latencies }) => latencies)]
    ).map((values) => Float64Array.from(values).sort()),
  }));
  const ends = curves.flatMap(({ sorted }) => sorted.flatMap((values) => [values[0], values.at(-1)]));
  const log = Math.max(...ends) > 3 * Math.min(...ends),
    x = scale(ends, [left, right], { log, pad: 0.02 }),
    y = scale([0, 1], [bottom, top], { pad: 0 });
  const svg = frame(width, height, `Empirical distribution of ${sides.map(({ name }) => name).join(", ")}`);
  svg.append(...yAxis(y, left, right, "share of samples", 12));
  let edge = -Infinity;
  for (const value of x.ticks) {
    const room = 6.4 * plain(value).length;
    if (x(value) - room / 2 < edge || x(value) + room / 2 > width) continue;
    svg.append(s("text", { x: x(value), y: bottom + 14, "text-anchor": "middle" }, plain(value)));
    edge = x(value) + room / 2 + 4;
  }
  svg.append(
    s(
      "text",
      { x: (left + right) / 2, y: height - 5, "text-anchor": "middle", class: "title" },
      `latency (µs${log ? ", log" : ""})`,
    ),
  );
  for (const { colour, dashed, sorted } of curves) {
    for (const values of sorted) {
      const step = Math.ceil(values.length / MOST_DOTS),
        d = [`M${x(values[0]).toFixed(1)},${bottom}`];
      for (let place = 0; place < values.length; place += step)
        d.push(`H${x(values[place]).toFixed(1)}V${y((place + 1) / values.length).toFixed(1)}`);
      svg.append(
        s("path", {
          class: "curve",
          style: `stroke: ${colour}${dashed ? "; stroke-dasharray: 5 3" : ""}`,
          d: `${d.join("")}H${x(values.at(-1)).toFixed(1)}V${y(1)}`,
        }),
      );
    }
  }
  return svg;
}
