// What is chosen, in full: each setting falls back to what the run has.

const AXES = {
  seq_len: "sequence length S",
  batch: "batch B",
  heads: "heads H",
  kv_heads: "heads of keys and values",
  kv_len: "keys",
};

const ONE_BY_ONE = [
  "run",
  "against",
  "baseline",
  "clock",
  "cache",
  "mask",
  "dtype",
  "dim",
  "axis",
  "metric",
  "by",
  "claim",
  "shape",
  "candidate",
  "find",
];
const KNOWN = [...ONE_BY_ONE, "candidates"];
const DEFAULTED = [
  "run",
  "against",
  "baseline",
  "clock",
  "cache",
  "mask",
  "dtype",
  "dim",
  "axis",
  "metric",
  "by",
  "claim",
];
const distinct = (values) => [...new Set(values)];
const mask = (shape) => (shape.causal ? "causal" : "full");

// What is chosen, in full; what can't be had falls back, and `notices` say so.
function resolve(data, raw) {
  const notices = Object.keys(raw)
    .filter((name) => !KNOWN.includes(name))
    .map((name) => `there is no setting “${name}”`);
  const state = { notices, find: String(raw.find ?? "") };
  const pick = (name, allowed, fallback) => {
    const wanted = raw[name];
    if (wanted !== undefined && !allowed.includes(wanted))
      notices.push(`${name} “${wanted}” is not here, ${fallback === "" ? "none" : `“${fallback}”`} is shown`);
    state[name] = allowed.includes(wanted) ? wanted : fallback;
  };
  pick(
    "run",
    data.runs.map((run) => run.name),
    data.runs[0].name,
  );
  const run = (state.shown = data.runs.find((one) => one.name === state.run));
  pick("against", againstOf(data, run), againstOf(data, run)[1] ?? "none");
  pick("baseline", Object.keys(run.verdicts), run.baseline);
  pick("clock", distinct(run.timings.map((timing) => timing.clock)), run.timings[0].clock);
  const caches = run.timings.filter((timing) => timing.clock === state.clock).map((timing) => timing.cache);
  pick("cache", caches, caches[0]);
  state.timing = run.timings.findIndex((timing) => timing.clock === state.clock && timing.cache === state.cache);
  for (const [name, of] of Object.entries(FILTERS)) pick(name, ["all", ...distinct(run.shapes.map(of))], "all");
  pick("axis", run.axes, run.axes[0]);
  pick("metric", Object.keys(data.metrics), Object.keys(run.verdicts[run.baseline]).length > 1 ? "speedup" : "latency");
  pick("by", ["pooled", "replicate"], "pooled");
  pick("claim", ["all", "claimable"], "all");
  const others = run.implementations.filter((name) => name !== state.baseline);
  // First what a ladder comes to: of many columns, the last are out of sight.
  const there = others.toSorted((one, other) => (other === "kernel.best") - (one === "kernel.best"));
  const wanted = raw.candidates ?? there;
  const lost = wanted.filter((name) => !run.implementations.includes(name));
  if (lost.length) notices.push(`the run has no ${lost.map((name) => `“${name}”`).join(", ")}`);
  state.candidates = there.filter((name) => wanted.includes(name));
  state.visible = run.shapes
    .map((_, place) => place)
    .filter((place) =>
      Object.entries(FILTERS).every(([name, of]) => state[name] === "all" || of(run.shapes[place]) === state[name]),
    );
  const target = state.visible.includes(run.target) ? run.target : state.visible[0];
  pick(
    "shape",
    run.shapes.map((shape) => shape.name),
    run.shapes[target ?? 0].name,
  );
  if (!state.visible.includes(run.shapeAt.get(state.shape)) && state.visible.length)
    state.shape = run.shapes[target].name;
  state.place = run.shapeAt.get(state.shape);
  const best = bestAt(state) ?? state.candidates[0] ?? "";
  pick("candidate", state.candidates, best);
  return state;
}

const FILTERS = { mask, dtype: (shape) => shape.dtype, dim: (shape) => String(shape.head_dim) };

function againstOf(data, run) {
  const byCount = data.pairs.toSorted((one, other) => other.deltas.length - one.deltas.length);
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

const caseAt = (state, shape, name) =>
  state.shown.caseAt.get(`${state.timing}/${shape}/${state.shown.implementations.indexOf(name)}`);

// The verdict on a candidate at a shape; undefined where there is none.
const verdictAt = (state, shape, name) => state.shown.verdictAt[state.baseline].get(caseAt(state, shape, name));

// The candidate with the largest speedup at the shape.
function bestAt(state) {
  const speedups = state.candidates.map((name) => [verdictAt(state, state.place, name)?.speedup ?? -1, name]);
  return speedups.filter(([speedup]) => speedup > 0).sort(([one], [other]) => other - one)[0]?.[1];
}

// The implementation with the smallest median at a shape of a run under a timing, and its case; undefined for none.
function fastest(run, timing, shape) {
  const rows = run.implementations
    .map((name, place) => [name, run.caseAt.get(`${timing}/${shape}/${place}`)])
    .filter(([, row]) => row !== undefined);
  return rows.sort(([, one], [, other]) => run.cases.latency[one] - run.cases.latency[other])[0];
}
