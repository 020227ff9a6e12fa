// Verdicts that change sign, and run A beside run B.

// The pair of the two runs chosen, and whether run A is its other one; undefined without run B.
function pairOf(explorer) {
  const { state, data } = explorer;
  if (state.against === "none") return undefined;
  const swapped = state.shown !== data.runs[0],
    other = swapped ? state.run : state.against;
  const pair = data.pairs.find((one) => data.runs[one.other].name === other);
  return pair && { ...pair, swapped };
}

function shownHere(state, name, candidate) {
  const place = state.shown.shapeAt.get(name);
  return (
    place !== undefined &&
    state.visible.includes(place) &&
    (candidate === state.baseline || state.candidates.includes(candidate))
  );
}

function makeFlips(explorer, part) {
  const { state } = explorer,
    pair = pairOf(explorer);
  const between = state.baseline === state.shown.baseline ? (pair?.flips ?? []) : [];
  const all = [...(state.shown.flips[state.baseline] ?? []), ...between].filter(({ shape, candidate }) =>
    shownHere(state, shape, candidate),
  );
  const rows = all.map(({ shape, candidate, by, words }) => [
    button(state.shown.shapes[state.shown.shapeAt.get(shape)].label, () => explorer.select({ shape, candidate }), {
      "data-at": `${shape}/${candidate}/${by}`,
    }),
    h("code", {}, candidate),
    by.join(", "),
    h("span", { class: "words" }, ...rich(words)),
  ]);
  const none = compared(state).trim() || "Among what is chosen, no sign flips.";
  part.replaceChildren(
    h("h2", {}, `Where values, clock, cache or run change the sign (${all.length})`),
    said(`Candidates that are faster than \`${state.baseline}\` by one of these and slower by another.`),
    rows.length ? table(["shape", "candidate", "flips with", "verdicts"], rows, "flips") : notice(...rich(none)),
  );
}

// In words, runs that this page has no room for.
const leftOut = (runs) =>
  runs.map(({ label, device }) => ` Left out for size: \`${label.split(",")[0]}\` (${device}).`).join("");

function makeBeside(explorer, part) {
  const { state, data } = explorer,
    pair = pairOf(explorer),
    start = [h("h2", {}, "Run A against run B"), ...(data.left_out.length ? [said(leftOut(data.left_out))] : [])];
  if (!pair) {
    const why = data.runs.length > 1 ? "No run B is chosen." : "There is no other complete run.";
    part.replaceChildren(...start, notice(why));
    return;
  }
  const { clock, cache } = state.shown.timings[state.timing];
  const here = pair.deltas.filter(
    ([timing, shape, name]) => timing === `${clock} ${cache}` && shownHere(state, shape, name),
  );
  const sides = [state.against, state.run].map((name) => data.runs.find((run) => run.name === name));
  const row = ([, shape, name, change, back, p, source]) => {
    const rows = sides.map((run) => caseAt({ shown: run, timing: timingOf(run, state) }, run.shapeAt.get(shape), name));
    const [b, a] = sides.map((run, place) => run.cases.interval[rows[place]]);
    const counts = sides.map((run, place) => run.cases.samples[rows[place]]);
    const { label } = state.shown.shapes[state.shown.shapeAt.get(shape)];
    const delta = pair.swapped ? back : change;
    return [h("code", {}, name), label, b, a, delta, `${p}, n=${counts.join("+")}`, source ? "other source" : ""];
  };
  const [changed, same] = [false, true].map((open) => here.filter((delta) => delta[3].endsWith("~") === open));
  const titles = ["case", "shape", ...["B", "A"].map((run) => `${run} (µs) [${data.confidence}]`)];
  titles.push(`change [${data.confidence}]`, "p, n of B + A", "kernel");
  const rest = h("details", {}, h("summary", {}, `${same.length} without a change that can be shown`));
  const fill = () => table(titles, same.map(row), "cases without a change that can be shown");
  rest.addEventListener("toggle", () => rest.children.length > 1 || rest.append(fill()));
  const words = `From \`${state.against}\` (B) to \`${state.run}\` (A), ${state.shown.timings[state.timing].words}: ${changed.length} of ${here.length} medians changed; \`~\` after a change that can't be shown. p-values are adjusted by Holm over all cases under the timing; a minus is faster in A.`;
  const parts = [
    ...start,
    said(words),
    here.length ? null : notice("The two share no case among what is chosen."),
    changed.length ? table(titles, changed.map(row), "run A against run B") : null,
    same.length ? rest : null,
  ];
  part.replaceChildren(...parts.filter(Boolean));
}
