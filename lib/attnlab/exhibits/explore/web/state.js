// What is chosen, in full: each setting falls back to what the run has.

const AXES = {
  seq_len: "sequence length S",
  batch: "batch B",
  heads: "heads H",
  kv_heads: "heads of keys and values",
  kv_len: "keys",
};

const DEFAULTED = ["run", "against", "baseline", "clock", "cache", "mask", "dtype", "dim", "values", "axis", "metric"];
DEFAULTED.push("by", "claim", "order");
const KNOWN = [...DEFAULTED, "shape", "candidate", "find", "candidates"];
// As a baseline: at each shape whichever peer has the smallest median there. As in recorded.py.
const FASTEST = "fastest peer";
const OURS = "kernel.";
// What is chosen anew with a shape found in another run; clock and cache stay where it has them.
const OF_RUN = ["against", "baseline", "mask", "dtype", "dim", "values", "axis", "claim", "order"];
OF_RUN.push("candidates", "candidate");
// Where no shape is left.
const NO_CELL = "What is chosen leaves no shape, and so no cell to show.";
const unset = (names) => Object.fromEntries(names.map((name) => [name, undefined]));
const distinct = (values) => [...new Set(values)];
const mask = (shape) => (shape.causal ? "causal" : "full");

// What is chosen, in full; what can't be had falls back, and `notices` say so.
function resolve(data, raw) {
  const notices = Object.keys(raw)
    .filter((name) => !KNOWN.includes(name))
    .map((name) => `there is no setting “${name}”`);
  const state = { notices, find: String(raw.find ?? ""), margin: data.margin };
  const pick = (name, allowed, fallback) => {
    const wanted = raw[name];
    if (wanted !== undefined && !allowed.includes(wanted))
      notices.push(`${name} “${wanted}” is not here, ${fallback === "" ? "none" : `“${fallback}”`} is shown`);
    state[name] = allowed.includes(wanted) ? wanted : fallback;
  };
  const runs = data.runs.map((run) => run.name);
  pick("run", runs, runs[0]);
  const run = (state.shown = data.runs.find((one) => one.name === state.run));
  pick("against", againstOf(data, run), againstOf(data, run)[1] ?? "none");
  pick("baseline", baselinesOf(run), run.baseline);
  pick("clock", distinct(run.timings.map((timing) => timing.clock)), run.timings[0].clock);
  const caches = run.timings.filter((timing) => timing.clock === state.clock).map((timing) => timing.cache);
  pick("cache", caches, caches[0]);
  state.timing = timingOf(run, state);
  for (const [name, of] of Object.entries(FILTERS)) pick(name, ["all", ...distinct(run.shapes.map(of))], "all");
  pick("axis", run.axes, run.axes[0]);
  pick("metric", Object.keys(data.metrics), run.verdicts[run.baseline].case ? "speedup" : "latency");
  pick("by", ["pooled", "replicate"], "pooled");
  pick("claim", ["all", "claimable", "lost"], "all");
  const there = run.ordered.filter((name) => name !== state.baseline);
  const wanted = raw.candidates ?? there;
  const lost = wanted.filter((name) => !run.implementations.includes(name));
  if (lost.length) notices.push(`the run has no ${lost.map((name) => `“${name}”`).join(", ")}`);
  state.candidates = there.filter((name) => wanted.includes(name));
  const orders = state.candidates.flatMap((name) => [`${name} ascending`, `${name} descending`]);
  pick("order", ["none", ...orders], "none");
  state.visible = among(state).filter((place) => state.claim !== "lost" || isLost(state, place));
  const target = state.visible.includes(run.target) ? run.target : state.visible[0];
  const shapes = run.shapes.map((shape) => shape.name);
  pick("shape", shapes, shapes[target] ?? "");
  if (!state.visible.includes(run.shapeAt.get(state.shape))) state.shape = shapes[target] ?? "";
  state.place = run.shapeAt.get(state.shape);
  const best = bestAt(state) ?? state.candidates[0] ?? "";
  pick("candidate", state.candidates, best);
  return state;
}

const FILTERS = {
  mask,
  dtype: (shape) => shape.dtype,
  dim: (shape) => String(shape.head_dim),
  values: (shape) => shape.values,
};

// A run in words; its device where that is another than of the run beside it.
const titled = ({ label, device }, beside) => (device === beside.device ? label : `${label} (${device})`);

// The places of the shapes that the filters leave.
const among = (state) =>
  [...state.shown.shapes.keys()].filter((place) =>
    Object.entries(FILTERS).every(([name, of]) => ["all", of(state.shown.shapes[place])].includes(state[name])),
  );

// Those that verdicts were computed against come first.
const baselinesOf = (run) =>
  distinct([...Object.keys(run.verdicts), ...(run.peers.length ? [FASTEST] : []), ...run.implementations]);

function againstOf(data, run) {
  const far = ({ other, deltas }) => [data.runs[other].device !== run.device, -deltas.length];
  const byCount = data.pairs.toSorted((one, other) => far(one)[0] - far(other)[0] || far(one)[1] - far(other)[1]);
  return ["none", ...(run === data.runs[0] ? byCount.map((pair) => data.runs[pair.other].name) : [data.runs[0].name])];
}

// The places of the shapes that differ from one in an axis alone; keys and their heads follow queries where they did.
function alongside(run, shape, axis) {
  const rest = (one) =>
    JSON.stringify({
      ...one,
      name: "",
      label: "",
      [axis]: 0,
      kv_len: one.kv_len === one.seq_len ? "same" : axis === "kv_len" ? 0 : one.kv_len,
      kv_heads: one.kv_heads === one.heads ? "same" : axis === "kv_heads" ? 0 : one.kv_heads,
    });
  const loose = (one) => (axis === "kv_len" || axis === "kv_heads" ? rest(one).replaceAll('"same"', "0") : rest(one));
  const wanted = loose(shape);
  const found = run.shapes.map((_, place) => place).filter((place) => loose(run.shapes[place]) === wanted);
  return found.sort((one, other) => run.shapes[one][axis] - run.shapes[other][axis]);
}

// Where the clock and the cache that are chosen stand among the timings of a run.
const timingOf = (run, { clock, cache }) => run.timings.findIndex((one) => one.clock === clock && one.cache === cache);

const caseAt = ({ shown, timing }, shape, name) =>
  name === FASTEST
    ? fastest(shown, timing, shape, shown.peers)?.[1]
    : shown.caseAt.get(`${timing}/${shape}/${shown.implementations.indexOf(name)}`);

// Why an implementation has no latency at a shape.
const absence = (run, place, name) =>
  run.absentAt.get(`${place}/${run.implementations.indexOf(name)}`) ?? "no latency under this timing";

// Which implementation the baseline is at a shape.
const baselineAt = (state, shape) =>
  state.shown.implementations[state.shown.cases.implementation?.[caseAt(state, shape, state.baseline)]] ??
  state.baseline;

// The verdict on a candidate at a shape, with the ratios of each replicate; against a baseline that no verdicts were
// computed against, the ratio of the medians alone. Undefined where there is none.
function verdictAt(state, shape, name) {
  const { cases, verdictAt } = state.shown,
    [base, row] = [state.baseline, name].map((one) => caseAt(state, shape, one));
  if (base === undefined || row === undefined || base === row) return undefined;
  const verdicts = verdictAt[state.baseline],
    replicates = cases.replicates_us[row].map((us, place) => cases.replicates_us[base][place] / us);
  if (verdicts) return verdicts.has(row) ? { ...verdicts.get(row), replicates } : undefined;
  const speedup = cases.latency[base] / cases.latency[row];
  return { speedup, short: speedup.toPrecision(4), replicates, cells: [speedup.toPrecision(4)] };
}

// The kind of a verdict and its speedup, in words.
const judged = ({ kind, cells }) => (kind ? `${kind} (${cells[0]})` : `a ratio of medians of ${cells[0]}, not judged`);

// Of our kernels what the ladder comes to, or else all of them; none where that is the baseline itself.
function judgedOurs({ shown, baseline }) {
  const ours = shown.ordered.filter((name) => name.startsWith(OURS));
  return (ours[0] === `${OURS}best` ? ours.slice(0, 1) : ours).filter((name) => name !== baseline);
}

// Whether these are slower than the baseline at a shape; of medians alone, if by more than what counts as equivalent.
function isLost(state, place) {
  const verdicts = judgedOurs(state).map((name) => verdictAt(state, place, name));
  const there = verdicts.filter(Boolean);
  return there.length > 0 && there.every(({ kind, speedup }) => (kind ? kind === "slower" : speedup < 1 - state.margin));
}

// The candidate with the largest speedup at the shape.
function bestAt(state) {
  const speedups = state.candidates.map((name) => [verdictAt(state, state.place, name)?.speedup ?? -1, name]);
  return speedups.filter(([speedup]) => speedup > 0).sort(([one], [other]) => other - one)[0]?.[1];
}

// Of some implementations the one with the smallest median at a shape of a run under a timing, and its case; undefined
// for none.
function fastest(run, timing, shape, among = run.implementations) {
  const rows = among
    .map((name) => [name, run.caseAt.get(`${timing}/${shape}/${run.implementations.indexOf(name)}`)])
    .filter(([, row]) => row !== undefined);
  return rows.sort(([, one], [, other]) => run.cases.latency[one] - run.cases.latency[other])[0];
}
