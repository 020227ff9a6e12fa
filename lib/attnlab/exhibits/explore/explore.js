// The explorer draws what attnlab computed beforehand and infers nothing. anywidget calls render({ model, el }), and so
// does host.js on a page; model.get("payload") is what data.py packed, model.get("state") what is chosen.

const METRICS = { speedup: "speedup", latency: "latency", throughput: "throughput", bandwidth: "bandwidth", light: "speed of light" };
const AXES = { seq_len: "sequence length S", batch: "batch B", heads: "heads H", kv_heads: "heads of keys and values", kv_len: "keys" };
const CLOCKS = {
  device: "device: kernels alone, as in a replayed graph",
  eager: "eager: what a PyTorch program sees call by call",
  cupti: "cupti: kernels alone, as CUPTI says",
};
const STEPS = 65535, THROTTLED = 32768;
const MOST_DOTS = 2000, MOST_FOUND = 8;

// ---------------------------------------------------------------------------------------------------- elements

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

// The Markdown of a sentence: `code`, **bold** and *emphasis*.
function rich(text) {
  const parts = text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*]+\*)/);
  return parts.map((part, place) => {
    if (place % 2 === 0) return part;
    if (part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    return part.startsWith("**") ? h("b", {}, part.slice(2, -2)) : h("i", {}, part.slice(1, -1));
  });
}

function table(titles, rows, caption) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

// -------------------------------------------------------------------------------------------------------- data

async function unpack(payload) {
  const bytes = new Uint8Array(payload.buffer, payload.byteOffset, payload.byteLength);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = await new Response(plain).arrayBuffer();
  const length = new DataView(raw).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, length)));
  let offset = 4 + length;
  const planes = (count) => {
    const [low, high] = [new Uint8Array(raw, offset, count), new Uint8Array(raw, offset + count, count)];
    offset += 2 * count;
    return Uint16Array.from(low, (value, place) => value + 256 * high[place]);
  };
  data.runs.forEach((run, place) => {
    const { cases, count, ...said } = data.samples[place];
    index(run, Object.assign(said, { codes: planes(count), clocks: planes(count) }), cases);
  });
  return data;
}

// What is looked up of a run: cases, verdicts and samples, by the places of timing, shape and implementation.
function index(run, samples, cases) {
  const key = (columns, row) => `${columns.timing[row]}/${columns.shape[row]}/${columns.implementation[row]}`;
  run.sampled = samples;
  run.caseAt = new Map((run.cases.timing ?? []).map((_, row) => [key(run.cases, row), row]));
  run.verdictAt = {};
  for (const [baseline, columns] of Object.entries(run.verdicts)) {
    const rows = columns.case?.map((_, place) => Object.fromEntries(Object.entries(columns).filter(([field]) => field !== "titles").map(([field, values]) => [field, values[place]])));
    run.verdictAt[baseline] = new Map(rows?.map((verdict) => [verdict.case, verdict]));
  }
  run.samplesAt = new Map();
  let first = 0;
  cases.timing.forEach((_, row) => {
    const sizes = cases.sizes[row];
    run.samplesAt.set(key(cases, row), { first, sizes, low: cases.low_us[row], span: cases.span[row], seconds: cases.seconds[row] });
    first += sizes.reduce((sum, size) => sum + size, 0);
  });
  run.absentAt = new Map(run.absent.map(([shape, implementation, why]) => [`${shape}/${implementation}`, why]));
  run.shapeAt = new Map(run.shapes.map((shape, place) => [shape.name, place]));
  run.along = Object.fromEntries(Object.keys(AXES).map((axis) => [axis, run.shapes.map((shape) => alongside(run, shape, axis))]));
  const varied = Object.keys(AXES).filter((axis) => run.along[axis].some((places) => places.length > 1));
  run.axes = varied.length ? varied : ["seq_len"];
}

// The samples of a case, a list for each replicate: latencies in µs, and SM clocks.
function samplesOf(run, timing, shape, implementation) {
  const found = run.samplesAt.get(`${timing}/${shape}/${implementation}`);
  if (!found) return [];
  let first = found.first;
  return found.sizes.map((size, place) => {
    const codes = run.sampled.codes.subarray(first, first + size), clocks = run.sampled.clocks.subarray(first, first + size);
    first += size;
    return { latencies: Array.from(codes, (code) => found.low * Math.exp((code / STEPS) * found.span)), clocks, seconds: found.seconds[place] };
  });
}

// ------------------------------------------------------------------------------------------------------- state

const ONE_BY_ONE = ["run", "against", "baseline", "clock", "cache", "mask", "dtype", "dim", "axis", "metric", "by", "claim", "shape", "candidate", "find"];
const KNOWN = [...ONE_BY_ONE, "candidates"];
const DEFAULTED = ["run", "against", "baseline", "clock", "cache", "mask", "dtype", "dim", "axis", "metric", "by", "claim"];
const distinct = (values) => [...new Set(values)];
const mask = (shape) => (shape.causal ? "causal" : "full");

// What is chosen, in full; what can't be had falls back, and `notices` say so.
function resolve(data, raw) {
  const notices = Object.keys(raw).filter((name) => !KNOWN.includes(name)).map((name) => `there is no setting “${name}”`);
  const state = { notices, find: String(raw.find ?? "") };
  const pick = (name, allowed, fallback) => {
    const wanted = raw[name];
    if (wanted !== undefined && !allowed.includes(wanted)) notices.push(`${name} “${wanted}” is not here, ${fallback === "" ? "none" : `“${fallback}”`} is shown`);
    state[name] = allowed.includes(wanted) ? wanted : fallback;
  };
  pick("run", data.runs.map((run) => run.name), data.runs[0].name);
  const run = (state.shown = data.runs.find((one) => one.name === state.run));
  pick("against", againstOf(data, run), againstOf(data, run)[1] ?? "none");
  pick("baseline", Object.keys(run.verdicts), run.baseline);
  pick("clock", distinct(run.timings.map((timing) => timing.clock)), run.timings[0].clock);
  const caches = run.timings.filter((timing) => timing.clock === state.clock).map((timing) => timing.cache);
  pick("cache", caches, caches[0]);
  state.timing = run.timings.findIndex((timing) => timing.clock === state.clock && timing.cache === state.cache);
  for (const [name, of] of Object.entries(FILTERS)) pick(name, ["all", ...distinct(run.shapes.map(of))], "all");
  pick("axis", run.axes, run.axes[0]);
  pick("metric", Object.keys(METRICS), Object.keys(run.verdicts[run.baseline]).length > 1 ? "speedup" : "latency");
  pick("by", ["pooled", "replicate"], "pooled");
  pick("claim", ["all", "claimable"], "all");
  const there = run.implementations.filter((name) => name !== state.baseline);
  const wanted = raw.candidates ?? there;
  const lost = wanted.filter((name) => !run.implementations.includes(name));
  if (lost.length) notices.push(`the run has no ${lost.map((name) => `“${name}”`).join(", ")}`);
  state.candidates = there.filter((name) => wanted.includes(name));
  state.visible = run.shapes.map((_, place) => place).filter((place) => Object.entries(FILTERS).every(([name, of]) => state[name] === "all" || of(run.shapes[place]) === state[name]));
  const target = state.visible.includes(run.target) ? run.target : state.visible[0];
  pick("shape", run.shapes.map((shape) => shape.name), run.shapes[target ?? 0].name);
  if (!state.visible.includes(run.shapeAt.get(state.shape)) && state.visible.length) state.shape = run.shapes[target].name;
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
  const rest = (one) => JSON.stringify({
    ...one, name: "", label: "", [axis]: 0,
    kv_len: one.kv_len === one.seq_len ? "same" : axis === "kv_len" ? 0 : one.kv_len,
    kv_heads: one.kv_heads === one.heads ? "same" : axis === "kv_heads" ? 0 : one.kv_heads,
  });
  const loose = (one) => (axis === "kv_len" || axis === "kv_heads" ? rest(one).replaceAll('"same"', "0") : rest(one));
  const wanted = loose(shape);
  const found = run.shapes.map((_, place) => place).filter((place) => loose(run.shapes[place]) === wanted);
  return found.sort((one, other) => run.shapes[one][axis] - run.shapes[other][axis]);
}

const caseAt = (state, shape, name) => state.shown.caseAt.get(`${state.timing}/${shape}/${state.shown.implementations.indexOf(name)}`);

// The verdict on a candidate at a shape; undefined where there is none.
const verdictAt = (state, shape, name) => state.shown.verdictAt[state.baseline].get(caseAt(state, shape, name));

// The candidate with the largest speedup at the shape.
function bestAt(state) {
  const speedups = state.candidates.map((name) => [verdictAt(state, state.place, name)?.speedup ?? -1, name]);
  return speedups.filter(([speedup]) => speedup > 0).sort(([one], [other]) => other - one)[0]?.[1];
}

// The implementation with the smallest median at a shape of a run under a timing, and its case; undefined for none.
function fastest(run, timing, shape) {
  const rows = run.implementations.map((name, place) => [name, run.caseAt.get(`${timing}/${shape}/${place}`)]).filter(([, row]) => row !== undefined);
  return rows.sort(([, one], [, other]) => run.cases.latency[one] - run.cases.latency[other])[0];
}

// ----------------------------------------------------------------------------------------------------- explorer

async function render({ model, el }) {
  // JupyterLab would take the arrow keys for its cells.
  const root = h("div", { class: "attnlab-explorer", "data-lm-suppress-shortcuts": "true" }, h("p", { role: "status" }, "reading the run …"));
  el.replaceChildren(root);
  let data;
  try {
    data = await unpack(model.get("payload"));
  } catch (error) {
    root.replaceChildren(h("p", { role: "alert" }, `This browser can't read the explorer's data (${error.message}): use one of 2023 or later.`));
    return () => {};
  }
  const explorer = new Explorer(data, model, root);
  const show = () => explorer.show();
  model.on("change:state", show);
  const resized = new ResizeObserver(() => explorer.resize());
  resized.observe(root);
  explorer.show();
  return () => {
    model.off("change:state", show);
    resized.disconnect();
  };
}

// Views of one page; each has ids of its own.
let views = 0;

class Explorer {
  constructor(data, model, root) {
    Object.assign(this, { data, model, root, drawn: {}, width: 0, prefix: views++ ? `attnlab${views}` : "attnlab" });
    this.parts = Object.fromEntries(Object.keys(SECTIONS).map((name) => [name, h("section", { "data-part": name })]));
    this.notice = h("p", { class: "notice", role: "status" });
    this.tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.heading = h("p", { class: "meta" });
    const rules = Object.entries(data.verdicts).map(([kind, { light, dark }]) => `.attnlab-explorer [data-kind="${kind}"] { background: light-dark(${light[0]}, ${dark[0]}); color: light-dark(${light[1]}, ${dark[1]}); }`);
    this.controls = controls(this);
    const columns = h("div", { class: "columns" }, h("div", {}, this.parts.matrix, this.parts.lines), h("div", {}, this.parts.cell));
    root.replaceChildren(h("style", {}, rules.join("\n")), h("header", {}, h("h1", {}, "Explore a run"), this.heading), this.notice, this.controls.form,
      this.parts.find, columns, this.parts.flips, this.parts.beside, this.parts.cite, this.tip);
  }

  // Choose settings; those that are as by default are left out of the address.
  choose(changes) {
    const raw = { ...this.model.get("state"), ...changes };
    for (const [name, value] of Object.entries(raw)) {
      if (value === undefined || !KNOWN.includes(name)) delete raw[name];
    }
    for (const name of DEFAULTED.filter((one) => one in changes && one in raw)) {
      const { [name]: value, ...rest } = raw;
      if (resolve(this.data, rest)[name] === value) delete raw[name];
    }
    this.model.set("state", raw);
    this.model.save_changes();
  }

  show() {
    const state = (this.state = resolve(this.data, this.model.get("state") ?? {}));
    const run = state.shown;
    this.heading.replaceChildren(...rich(`run \`${run.name}\` · ${run.device} · ${run.created} · attnlab ${this.data.attnlab}${run.complete ? "" : " · not complete"}`));
    this.notice.textContent = state.notices.length ? `From the address: ${state.notices.join("; ")}.` : "";
    this.controls.show(state);
    this.draw();
    document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn ?? 0) + 1);
  }

  // Draw the sections that depend on what changed.
  draw() {
    const width = Math.round(this.root.clientWidth);
    for (const [name, { needs, make }] of Object.entries(SECTIONS)) {
      const key = JSON.stringify([width, this.state.run, ...needs.map((need) => this.state[need])]);
      if (this.drawn[name] === key) continue;
      this.drawn[name] = key;
      const part = this.parts[name], focused = part.contains(document.activeElement) ? document.activeElement.dataset.at : undefined;
      make(this, part);
      if (focused !== undefined) part.querySelector(`[data-at="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
  }

  resize() {
    const width = Math.round(this.root.clientWidth);
    if (width === this.width) return;
    this.width = width;
    if (this.state) this.draw();
  }

  colour(name) {
    const { light, dark } = this.data.colours[name] ?? { light: "#595959", dark: "#bbbbbb" };
    return `light-dark(${light}, ${dark})`;
  }

  point(event, lines) {
    const box = this.root.getBoundingClientRect();
    this.tip.replaceChildren(...lines.map((line) => h("div", {}, line)));
    this.tip.hidden = false;
    const left = Math.min(event.clientX - box.left + 12, box.width - this.tip.offsetWidth - 4);
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${event.clientY - box.top + 14}px`;
  }
}

// ----------------------------------------------------------------------------------------------------- controls

function controls(explorer) {
  const { data } = explorer;
  const selects = {};
  const select = (name, label, change = (value) => ({ [name]: value })) => {
    const id = `${explorer.prefix}-${name}`;
    selects[name] = h("select", { id, onchange: (event) => explorer.choose(change(event.target.value)) });
    return h("div", { class: "control" }, h("label", { for: id }, label), selects[name]);
  };
  const chosen = h("div", { class: "checks" });
  const summary = h("summary", {});
  const claim = h("input", { type: "checkbox", id: `${explorer.prefix}-claim`, onchange: (event) => explorer.choose({ claim: event.target.checked ? "claimable" : undefined }) });
  const other = { shape: undefined, candidate: undefined };
  const form = h("form", { class: "controls", "aria-label": "What is shown", onsubmit: (event) => event.preventDefault() },
    select("run", "run A", (run) => ({ run, against: undefined, baseline: undefined, clock: undefined, cache: undefined, mask: undefined, dtype: undefined, dim: undefined, axis: undefined, candidates: undefined, candidate: undefined, shape: keptShape(explorer, run) })),
    select("against", "run B"),
    select("baseline", "baseline", (baseline) => ({ baseline, candidates: undefined, candidate: undefined })),
    select("clock", "clock", (clock) => ({ clock, cache: keptCache(explorer, clock) })),
    select("cache", "cache"),
    select("mask", "mask", (value) => ({ mask: value, ...other })),
    select("dtype", "dtype", (value) => ({ dtype: value, ...other })),
    select("dim", "D", (value) => ({ dim: value, ...other })),
    select("axis", "sweep axis"),
    select("metric", "metric"),
    select("by", "samples"),
    h("div", { class: "control check" }, claim, h("label", { for: `${explorer.prefix}-claim` }, "claimable only")),
    h("details", { class: "control candidates" }, summary, chosen));
  const show = (state) => {
    const run = state.shown;
    const of = (name) => ["all", ...distinct(run.shapes.map(FILTERS[name]))];
    const options = {
      run: data.runs.map((one) => [one.name, one.name]),
      against: againstOf(data, run).map((name) => [name, name]),
      baseline: Object.keys(run.verdicts).map((name) => [name, name]),
      clock: distinct(run.timings.map((timing) => timing.clock)).map((clock) => [clock, CLOCKS[clock] ?? clock]),
      cache: run.timings.filter((timing) => timing.clock === state.clock).map(({ cache }) => [cache, `${cache} L2`]),
      mask: of("mask").map((value) => [value, value]),
      dtype: of("dtype").map((value) => [value, value]),
      dim: of("dim").map((value) => [value, value]),
      axis: run.axes.map((axis) => [axis, AXES[axis]]),
      metric: Object.entries(METRICS).map(([metric, words]) => [metric, data.units[metric] ? `${words} (${data.units[metric]})` : words]),
      by: [["pooled", "pooled"], ["replicate", "by replicate"]],
    };
    for (const [name, select] of Object.entries(selects)) {
      const key = JSON.stringify(options[name]);
      if (select.dataset.options !== key) {
        select.replaceChildren(...options[name].map(([value, words]) => h("option", { value }, words)));
        select.dataset.options = key;
      }
      select.value = state[name];
    }
    claim.checked = state.claim === "claimable";
    const there = run.implementations.filter((name) => name !== state.baseline);
    summary.replaceChildren(`candidates (${state.candidates.length} of ${there.length})`);
    if (chosen.dataset.names !== JSON.stringify(there)) {
      chosen.dataset.names = JSON.stringify(there);
      chosen.replaceChildren(...there.map((name) => h("label", {}, h("input", { type: "checkbox", value: name, onchange: () => {
        const names = [...chosen.querySelectorAll("input")].filter((box) => box.checked).map((box) => box.value);
        explorer.choose({ candidates: names.length === there.length ? undefined : names, candidate: undefined });
      } }), swatch(explorer, name), h("span", {}, name))));
    }
    for (const box of chosen.querySelectorAll("input")) box.checked = state.candidates.includes(box.value);
  };
  return { form, show };
}

const swatch = (explorer, name) => h("span", { class: "swatch", style: `background: ${explorer.colour(name)}` });

function keptShape(explorer, name) {
  const run = explorer.data.runs.find((one) => one.name === name);
  return run.shapeAt.has(explorer.state.shape) ? explorer.state.shape : undefined;
}

function keptCache(explorer, clock) {
  const { shown, cache } = explorer.state;
  return shown.timings.some((timing) => timing.clock === clock && timing.cache === cache) ? explorer.model.get("state").cache : undefined;
}

// --------------------------------------------------------------------------------------------------- find a shape

const DTYPES = { fp16: "float16", half: "float16", float16: "float16", bf16: "bfloat16", bfloat16: "bfloat16", fp32: "float32", float32: "float32" };
const SIZES = { b: "batch", batch: "batch", h: "heads", heads: "heads", s: "seq_len", seq_len: "seq_len", d: "head_dim", head_dim: "head_dim" };

// What a request such as "S=1000 causal bf16" names; words that say nothing are returned too.
function requested(text) {
  const wanted = {}, unknown = [];
  for (const word of text.toLowerCase().split(/[\s,;]+/).filter(Boolean)) {
    const [, axis, size] = word.match(/^([a-z_]+)[=:]?(\d+)$/) ?? [];
    if (DTYPES[word]) wanted.dtype = DTYPES[word];
    else if (word === "causal" || word === "full") wanted.causal = word === "causal";
    else if (SIZES[axis]) wanted[SIZES[axis]] = Number(size);
    else unknown.push(word);
  }
  return { wanted, unknown };
}

// In what a shape differs from what is wanted, in words, and how far it is: another mask or type counts as much as a
// factor of two, another kind of attention as one of four.
function apart(shape, wanted) {
  const sizes = ["batch", "heads", "seq_len", "head_dim"].filter((axis) => wanted[axis] && shape[axis] !== wanted[axis]);
  const words = ["causal", "dtype"].filter((axis) => axis in wanted && shape[axis] !== wanted[axis]).map((axis) => (axis === "causal" ? mask(shape) : shape.dtype));
  const kinds = special(shape);
  const distance = sizes.reduce((sum, axis) => sum + Math.abs(Math.log2(shape[axis] / wanted[axis])), words.length + 2 * kinds.length);
  return { differs: [...sizes.map((axis) => `${LETTERS[axis]}=${shape[axis]}`), ...words, ...kinds], distance };
}

// What a shape is beside a forward pass of plain self-attention.
function special(shape) {
  const plain = { kv_heads: shape.heads, kv_len: shape.seq_len, lengths: "equal", direction: "forward" };
  const words = { kv_heads: `${shape.kv_heads} KV heads`, kv_len: `${shape.kv_len} keys`, lengths: `${shape.lengths} lengths`, direction: shape.direction };
  return Object.keys(plain).filter((axis) => shape[axis] !== plain[axis]).map((axis) => words[axis]);
}

function makeFind(explorer, part) {
  const { state, data } = explorer;
  if (!part.firstChild) {
    const input = h("input", { id: `${explorer.prefix}-find`, type: "search", placeholder: "S=1000 causal bf16", autocomplete: "off", spellcheck: "false", "data-at": "find" });
    const form = h("form", { class: "find", role: "search", onsubmit: (event) => { event.preventDefault(); explorer.choose({ find: input.value.trim() || undefined }); } },
      h("label", { for: `${explorer.prefix}-find` }, "Which kernel for"), input, h("button", { type: "submit" }, "Find"));
    part.append(h("h2", {}, "Which kernel?"), form, h("div", { class: "found", "aria-live": "polite" }));
  }
  part.querySelector("input").value = state.find;
  part.querySelector(".found").replaceChildren(...(state.find ? found(explorer) : [h("p", {}, ...rich(answer(state, data)))]));
}

// A sentence on the selected shape.
function answer(state) {
  const run = state.shown, first = fastest(run, state.timing, state.place), { label } = run.shapes[state.place], { words } = run.timings[state.timing];
  if (!first) return `Nothing has a latency at ${label}, ${words}.`;
  const [name, row] = first, verdict = verdictAt(state, state.place, name);
  const judged = verdict ? ` Compared with \`${state.baseline}\`: ${verdict.kind} (${verdict.cells[0]}).` : name === state.baseline ? " It is the baseline." : "";
  return `At ${label}, ${words}: \`${name}\` has the smallest median, ${run.cases.interval[row]} µs.${judged}`;
}

function found(explorer) {
  const { state, data } = explorer, { wanted, unknown } = requested(state.find);
  const said = unknown.length ? [h("p", { class: "notice" }, `Not understood: ${unknown.join(", ")}. A request names S, B, H or D with a number, causal or full, fp16, bf16 or fp32.`)] : [];
  if (!Object.keys(wanted).length) return said;
  const near = data.runs.flatMap((run) => {
    const timing = run.timings.findIndex((one) => one.clock === state.clock && one.cache === state.cache);
    const there = run.shapes.map((shape, place) => ({ run, shape, place, first: fastest(run, timing, place), ...apart(shape, wanted) }));
    return there.filter(({ first }) => first);
  });
  if (!near.length) return [...said, h("p", { class: "notice" }, "No run here has a latency under this clock and cache.")];
  near.sort((one, other) => one.distance - other.distance);
  const rows = near.slice(0, MOST_FOUND).map(({ run, shape, first: [name, row], differs }) => {
    const verdict = run.verdictAt[run.baseline].get(row);
    const kind = name === run.baseline ? "is the baseline" : verdict === undefined ? "not compared" : `${verdict.kind} (${verdict.cells[0]})`;
    const select = () => explorer.choose({ run: run === data.runs[0] ? undefined : run.name, shape: shape.name, candidate: undefined, candidates: undefined, mask: undefined, dtype: undefined, dim: undefined, baseline: undefined, against: undefined, axis: undefined });
    return [
      h("button", { type: "button", onclick: select, "data-at": `${run.name}/${shape.name}` }, shape.label),
      differs.length ? differs.join(", ") : "nothing: as asked", h("code", {}, name), run.cases.interval[row], kind, run.name];
  });
  const exact = near[0].differs.length === 0;
  const words = `${exact ? "Measured as asked" : "No run here measured exactly this; the nearest that were"}, ${state.shown.timings[state.timing].words}:`;
  return [...said, h("p", {}, words), table(["shape", "differs in", "smallest median", `median (µs) [${data.confidence}]`, "against the run's baseline", "run"], rows, "shapes found")];
}

// --------------------------------------------------------------------------------------------------------- matrix

const LETTERS = { batch: "B", heads: "H", seq_len: "S", head_dim: "D", kv_heads: "KV", kv_len: "keys" };

// The sequence length of a shape, and in what else it differs from the target.
function briefly(shape, target) {
  const sizes = Object.keys(LETTERS).filter((axis) => axis === "seq_len" || (shape[axis] !== target[axis] && !(axis === "kv_len" && shape.kv_len === shape.seq_len) && !(axis === "kv_heads" && shape.kv_heads === shape.heads)));
  const words = ["dtype", "lengths", "direction"].filter((axis) => shape[axis] !== target[axis]).map((axis) => shape[axis].replace("float", "fp").replace("bfp", "bf"));
  return [...sizes.map((axis) => `${LETTERS[axis]}=${shape[axis]}`), ...(shape.causal === target.causal ? [] : [mask(shape)]), ...words].join(" ");
}

function makeMatrix(explorer, part) {
  const { state, data } = explorer, run = state.shown;
  const shapes = state.visible.map((place) => run.shapes[place]), target = run.shapes[run.target];
  const head = h("tr", {}, h("th", { scope: "col" }, "shape"), state.candidates.map((candidate) => h("th", { scope: "col" }, swatch(explorer, candidate), broken(candidate))));
  const rows = shapes.map((shape) => {
    const place = run.shapeAt.get(shape.name);
    const cells = state.candidates.map((candidate) => matrixCell(explorer, place, candidate));
    const label = h("th", { scope: "row", title: shape.label }, briefly(shape, target), shape === target ? h("span", { class: "target" }, " target") : null);
    return h("tr", {}, label, cells);
  });
  const grid = h("table", { role: "grid", class: "matrix", "aria-label": `Verdicts against ${state.baseline}, shapes by candidates`, onkeydown: (event) => move(explorer, event) }, h("thead", {}, head), h("tbody", {}, rows));
  const inside = grid.querySelector('[aria-selected="true"]') ?? grid.querySelector("td");
  inside?.setAttribute("tabindex", 0);
  const legend = h("p", { class: "legend" }, Object.entries(data.verdicts).map(([kind, { sign }]) => h("span", {}, h("span", { class: "key", "data-kind": kind }, sign), ` ${kind}`)));
  const what = state.metric === "speedup" ? (state.by === "pooled" ? `the speedup over ${state.baseline}` : `in how many replicates the candidate's median is the smaller`) : `${METRICS[state.metric]}, ${data.units[state.metric]}`;
  const none = !shapes.length ? "No shape is left: choose another mask, dtype or D." : !state.candidates.length ? "No candidate is chosen." : "";
  const { scrollTop = 0, scrollLeft = 0 } = part.querySelector(".scroll") ?? {};
  part.replaceChildren(h("h2", {}, "Verdicts"),
    h("p", {}, ...rich(`Against \`${state.baseline}\`, ${run.timings[state.timing].words}; the number is ${what}.${compared(state)} A row names S, and what else differs from the target ${target.label}. Arrows move, Enter selects.`)),
    none ? h("p", { class: "notice" }, none) : h("div", { class: "scroll" }, grid), legend);
  grid.parentElement?.scrollTo(scrollLeft, scrollTop);
  const selected = `${state.place}/${state.candidate}`;
  if (explorer.revealed !== selected) reveal(grid.closest(".scroll"), grid.querySelector('[aria-selected="true"]'));
  explorer.revealed = selected;
}

// Scroll a cell of a table into view, and nothing but the table; row and column titles stay where they are.
function reveal(scroll, cell) {
  if (!scroll || !cell) return;
  const head = cell.closest("table").tHead.offsetHeight, side = cell.parentElement.firstElementChild.offsetWidth;
  const [top, left] = [cell.offsetTop, cell.offsetLeft];
  if (top < scroll.scrollTop + head) scroll.scrollTop = top - head;
  if (top + cell.offsetHeight > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + cell.offsetHeight - scroll.clientHeight;
  if (left < scroll.scrollLeft + side) scroll.scrollLeft = left - side;
  if (left + cell.offsetWidth > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = left + cell.offsetWidth - scroll.clientWidth;
}

// Why there may be no verdict at all.
function compared(state) {
  const run = state.shown;
  if (!(run.cases.timing ?? []).length) return " Nothing has a latency in this run: the reasons are in the cells.";
  return (run.verdicts[state.baseline].case ?? []).length ? "" : ` This run holds no comparison with \`${state.baseline}\`.`;
}

const broken = (name) => name.split(/(?<=\.)/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));

function matrixCell(explorer, place, candidate) {
  const { state, data } = explorer, run = state.shown, row = caseAt(state, place, candidate), verdict = verdictAt(state, place, candidate);
  const chosen = place === state.place && candidate === state.candidate;
  const why = run.absentAt.get(`${place}/${run.implementations.indexOf(candidate)}`) ?? "no latency under this timing";
  const kind = verdict?.kind ?? (row === undefined ? "no latency" : undefined);
  const hidden = state.claim === "claimable" && kind !== "faster, claimable";
  const number = row === undefined ? "" : state.metric !== "speedup" ? run.cases[`${state.metric} text`][row] : !verdict ? "" : state.by === "pooled" ? verdict.short : `${verdict.replicates.filter((ratio) => ratio > 1).length}/${verdict.replicates.length}`;
  const words = `${candidate}, ${run.shapes[place].label}: ${kind ?? "not compared"}${verdict ? `, speedup ${verdict.cells[0]}` : row === undefined ? `, ${why}` : ""}`;
  return h("td", {
    role: "gridcell", tabindex: -1, "aria-selected": String(chosen), "aria-label": words, title: words, "data-at": `${place}/${candidate}`,
    class: hidden ? "quiet" : undefined, "data-kind": hidden ? undefined : kind,
    onclick: () => explorer.choose({ shape: run.shapes[place].name, candidate }),
  }, hidden ? "·" : `${kind ? data.verdicts[kind].sign : ""} ${number}`.trim());
}

// Arrow keys, Home and End within the matrix; Enter and the space bar select.
function move(explorer, event) {
  const cell = event.target.closest("td");
  if (!cell) return;
  const row = cell.parentElement, column = [...row.children].indexOf(cell);
  const there = {
    ArrowRight: cell.nextElementSibling, ArrowLeft: cell.previousElementSibling,
    ArrowDown: row.nextElementSibling?.children[column], ArrowUp: row.previousElementSibling?.children[column],
    Home: row.querySelector("td"), End: row.lastElementChild,
  };
  if (event.key === "Enter" || event.key === " ") cell.click();
  else if (event.key in there) {
    const next = there[event.key];
    if (next?.tagName === "TD") {
      cell.closest("table").querySelectorAll('td[tabindex="0"]').forEach((one) => one.setAttribute("tabindex", -1));
      next.setAttribute("tabindex", 0);
      next.focus();
    }
  } else return;
  event.preventDefault();
}

// --------------------------------------------------------------------------------------------------------- scales

// A scale from values to pixels, with ticks; logarithmic where it spans much or is a ratio.
function scale(values, [from, to], { log, around, pad = 0.04 } = {}) {
  let low = Math.min(...values), high = Math.max(...values);
  if (around !== undefined) [low, high] = [Math.min(low, around), Math.max(high, around)];
  if (!(low < high)) [low, high] = low > 0 ? [low / 1.05, high * 1.05] : [low - 1, high + 1];
  const to01 = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  const at = (value) => from + (to - from) * (pad + (1 - 2 * pad) * to01(value));
  const marks = log ? logTicks(low, high) : ticks(low, high);
  return Object.assign(at, { ticks: marks.filter((mark) => to01(mark) >= -pad && to01(mark) <= 1 + pad) });
}

function ticks(low, high, about = 5) {
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  return Array.from({ length: 12 }, (_, place) => (Math.ceil(low / step) + place) * step).filter((value) => value <= high * (1 + 1e-9));
}

function logTicks(low, high) {
  if (high / low < 6) return ticks(low, high, 6).filter((value) => value > 0);
  const subs = high / low > 100 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5];
  const decades = Array.from({ length: 16 }, (_, place) => 10 ** (place + Math.floor(Math.log10(low))));
  return decades.flatMap((decade) => subs.map((sub) => sub * decade)).filter((value) => value >= low / 1.01 && value <= high * 1.01);
}

const plain = (value) => (Math.abs(value) >= 1e6 ? value.toExponential(0) : Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 6 }));

function frame(width, height, words) {
  return s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words });
}

function yAxis(y, left, right, title, top) {
  return [s("text", { x: left, y: top, class: "title" }, title),
    ...y.ticks.flatMap((value) => [s("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }), s("text", { x: left - 5, y: y(value) + 3.5, "text-anchor": "end" }, plain(value))])];
}

// ---------------------------------------------------------------------------------------------------------- lines

function makeLines(explorer, part) {
  const { state, data } = explorer, run = state.shown, axis = state.axis;
  const places = run.along[axis][state.place];
  const names = [state.baseline, ...state.candidates].filter((name) => state.claim === "all" || name === state.baseline || places.some((place) => verdictAt(state, place, name)?.kind === "faster, claimable"));
  const lines = names.map((name) => ({ name, points: places.map((place) => pointAt(state, place, name, data.units)).filter(Boolean) })).filter(({ points }) => points.length);
  const title = `${METRICS[state.metric]}${data.units[state.metric] ? ` (${data.units[state.metric]})` : ""}`;
  const start = [h("h2", {}, `Along ${AXES[axis]}`)];
  const where = run.shapes[state.place].label;
  if (!lines.length) {
    part.replaceChildren(...start, h("p", { class: "notice" }, `Nothing has a ${METRICS[state.metric]} here, ${run.timings[state.timing].words}.`));
    return;
  }
  const alone = places.length < 2 ? ` No other shape differs from it in this axis alone.` : "";
  const whiskers = state.by === "pooled" ? `whiskers are ${data.confidence} intervals` : `a thin line for each replicate`;
  start.push(h("p", {}, `Through ${where}, ${run.timings[state.timing].words}; ${whiskers}.${alone} Axes are logarithmic.`));
  const width = Math.max(280, part.clientWidth || 600), height = Math.min(380, Math.max(260, 90 + 17 * lines.length));
  const longest = Math.max(...lines.map(({ name }) => name.length));
  const [left, right, top, bottom] = [52, width - Math.min(width * 0.36, 14 + 5.8 * Math.min(longest, 22)), 24, height - 38];
  const ends = lines.flatMap(({ points }) => points.flatMap((point) => [point.low ?? point.value, point.high ?? point.value, ...(state.by === "replicate" ? point.replicates : [])])).filter((value) => value > 0);
  const y = scale(ends, [bottom, top], { log: true, around: state.metric === "speedup" ? 1 : undefined });
  const sizes = places.map((place) => run.shapes[place][axis]);
  const x = scale(sizes, [left, right], { log: true });
  const svg = frame(width, height, `${title} over ${AXES[axis]}, a line for each of ${names.length} implementations; the table below has the numbers`);
  svg.append(...yAxis(y, left, right, title, 12));
  let edge = -Infinity;
  for (const size of distinct(sizes)) {
    const room = 6.6 * String(size).length + 6;
    svg.append(s("line", { x1: x(size), x2: x(size), y1: bottom, y2: bottom + 4, class: "axis" }));
    if (x(size) - room / 2 < edge) continue;
    svg.append(s("text", { x: x(size), y: bottom + 15, "text-anchor": "middle" }, String(size)));
    edge = x(size) + room / 2;
  }
  svg.append(s("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle", class: "title" }, AXES[axis]));
  if (state.metric === "speedup") svg.append(s("line", { x1: left, x2: right, y1: y(1), y2: y(1), class: "one" }));
  for (const { name, points } of lines) svg.append(drawnLine(explorer, name, points, x, y));
  svg.append(...endLabels(explorer, lines, x, y, right, top, bottom));
  const rows = lines.flatMap(({ name, points }) => points.map((point) => [name, String(point.size), point.words, String(point.samples), point.clock, point.throttled]));
  part.replaceChildren(...start, svg,
    h("details", {}, h("summary", {}, "The same as a table"), table(["implementation", AXES[axis], title, "n", "SM clock", "throttled"], rows, "numbers of the lines")));
}

function pointAt(state, place, name, units) {
  const run = state.shown, row = caseAt(state, place, name);
  if (row === undefined) return undefined;
  const { cases } = run, common = { place, size: run.shapes[place][state.axis], samples: cases.samples[row], clock: cases.clock[row], throttled: cases.throttled[row] };
  if (state.metric === "speedup") {
    const verdict = verdictAt(state, place, name);
    if (!verdict) return undefined;
    return { ...common, value: verdict.speedup, low: verdict.low, high: verdict.high, replicates: verdict.replicates, words: `${verdict.cells[0]}, ${verdict.kind}` };
  }
  const value = cases[state.metric][row];
  if (value === null) return undefined;
  const median = cases.latency[row], of = (us) => (us > 0 ? (state.metric === "latency" ? us : (value * median) / us) : undefined);
  const words = `${state.metric === "latency" ? cases.interval[row] : cases[`${state.metric} text`][row]} ${units[state.metric]}`;
  return { ...common, value, low: of(cases.low_us[row]), high: of(cases.high_us[row]), replicates: cases.replicates_us[row].map(of), words };
}

function drawnLine(explorer, name, points, x, y) {
  const { state } = explorer, colour = explorer.colour(name), group = s("g", { style: `color: ${colour}`, class: name === state.candidate ? "line chosen" : "line" });
  const path = (of) => `M${points.map((point) => `${x(point.size).toFixed(1)},${y(of(point)).toFixed(1)}`).join("L")}`;
  if (state.by === "replicate") {
    const most = Math.max(...points.map((point) => point.replicates.length));
    for (let replicate = 0; replicate < most; replicate++) {
      const there = points.filter((point) => point.replicates[replicate] > 0);
      if (there.length) group.append(s("path", { class: "thin", d: `M${there.map((point) => `${x(point.size).toFixed(1)},${y(point.replicates[replicate]).toFixed(1)}`).join("L")}` }));
    }
  }
  group.append(s("path", { d: path((point) => point.value) }));
  for (const point of points) {
    if (state.by === "pooled" && point.low > 0 && point.high > 0) group.append(s("line", { class: "whisker", x1: x(point.size), x2: x(point.size), y1: y(point.low), y2: y(point.high) }));
    const lines = [`${name}, ${explorer.state.shown.shapes[point.place].label}`, point.words, `n = ${point.samples}, SM clock ${point.clock}, throttled ${point.throttled}`];
    group.append(s("circle", { class: "dot", cx: x(point.size), cy: y(point.value), r: 3 }),
      s("circle", { class: "touch", cx: x(point.size), cy: y(point.value), r: 9, onpointermove: (event) => explorer.point(event, lines), onpointerleave: () => (explorer.tip.hidden = true), onclick: () => explorer.choose({ shape: explorer.state.shown.shapes[point.place].name, candidate: name === state.baseline ? undefined : name }) }));
  }
  return group;
}

// The names at the ends of the lines, moved apart.
function endLabels(explorer, lines, x, y, right, top, bottom) {
  const labels = lines.map(({ name, points }) => ({ name, wanted: y(points.at(-1).value), from: x(points.at(-1).size) })).sort((one, other) => one.wanted - other.wanted);
  const step = Math.min(13, (bottom - top + 12) / labels.length);
  let above = top - step;
  for (const label of labels) above = label.at = Math.max(label.wanted, above + step);
  let below = bottom + step + 4;
  for (const label of labels.toReversed()) below = label.at = Math.min(label.at, below - step);
  return labels.map(({ name, at, wanted, from }) => s("g", { style: `color: ${explorer.colour(name)}` },
    s("path", { class: "lead", d: `M${from.toFixed(1)},${wanted.toFixed(1)}L${right + 8},${at.toFixed(1)}` }),
    s("text", { x: right + 11, y: at + 3.5, class: "name" }, name.length > 22 ? `${name.slice(0, 21)}…` : name, s("title", {}, name))));
}

// ----------------------------------------------------------------------------------------------------------- cell

function makeCell(explorer, part) {
  const { state, data } = explorer, run = state.shown, shape = run.shapes[state.place];
  const start = [h("h2", {}, "The selected cell"), h("p", { class: "selected" }, ...rich(`\`${state.candidate || "no candidate"}\` against \`${state.baseline}\` at ${shape.label}, ${run.timings[state.timing].words}`))];
  const absent = [state.baseline, state.candidate].filter((name) => name && caseAt(state, state.place, name) === undefined);
  const why = absent.map((name) => h("p", { class: "notice" }, ...rich(`\`${name}\` has no latency here: ${run.absentAt.get(`${state.place}/${run.implementations.indexOf(name)}`) ?? "not under this timing"}.`)));
  const verdict = verdictAt(state, state.place, state.candidate);
  const said = verdict ? [
    h("p", { class: "statement" }, ...rich(verdict.statement)),
    h("p", { class: "power" }, ...rich(verdict.power)),
  ] : [];
  const rows = [state.baseline, state.candidate].map((name) => [name, caseAt(state, state.place, name)]).filter(([name, row]) => name && row !== undefined);
  const fields = [[`median (µs) [${data.confidence}]`, "interval"], ["samples", "samples"], ["throughput (TFLOP/s)", "throughput text"], ["bandwidth (GB/s)", "bandwidth text"], ["speed of light (%)", "light text"], ["SM clock", "clock"], ["throttled", "throttled"]];
  const cases = rows.length ? [table(["", ...rows.map(([name]) => h("code", {}, name))], fields.map(([title, column]) => [title, ...rows.map(([, row]) => String(run.cases[column][row]))]), "both sides")] : [];
  if (verdict) cases.unshift(table(["", h("code", {}, state.candidate)], run.verdicts[state.baseline].titles.map((title, place) => [title, verdict.cells[place]]), "the verdict"));
  const marks = distinct(rows.map(([, row]) => run.cases.marks[row])).filter(Boolean).map((mark) => h("p", { class: "note" }, mark));
  part.replaceChildren(...start, ...why, ...said, ...cases, ...marks, ...distributions(explorer, part));
}

function distributions(explorer, part) {
  const { state } = explorer, run = state.shown;
  const of = (place) => samplesOf(run, state.timing, state.place, place);
  const sides = [state.baseline, state.candidate].filter(Boolean).map((name) => ({ name, colour: explorer.colour(name), replicates: of(run.implementations.indexOf(name)) })).filter(({ replicates }) => replicates.length);
  if (!sides.length) return [h("p", { class: "notice" }, "No samples of this cell are here.")];
  const control = state.baseline === run.baseline ? of(run.implementations.length) : [];
  if (control.length) sides.push({ name: `${run.baseline} again (A/A)`, colour: "light-dark(#767676, #9a9a9a)", replicates: control, dashed: true });
  const width = Math.max(280, part.clientWidth || 400);
  const { every, error_pct: error } = run.sampled;
  const kept = every === 1 ? "Every sample is drawn" : `Of every ${every} rounds one is drawn`;
  const rounded = `${kept}, rounded by at most ${Number(error.toPrecision(2))} %; the numbers above are of all samples as recorded.`;
  return [h("h3", {}, "Samples in the order taken"), overTime(sides.slice(0, 2), width), h("h3", {}, "Distribution (ECDF)"), ecdf(sides, width, state.by), legendOf(sides), h("p", { class: "note" }, rounded)];
}

const legendOf = (sides) => h("p", { class: "legend" }, sides.map(({ name, colour, dashed }) => h("span", {}, h("span", { class: "stroke", style: `border-top: 2px ${dashed ? "dashed" : "solid"} ${colour}` }), ` ${name}`)));

function overTime(sides, width) {
  const count = Math.max(...sides.map(({ replicates }) => replicates.length)), perRow = Math.min(count, Math.max(1, Math.floor((width - 46) / 62)));
  const [left, height, upper, lower] = [46, 196, [22, 128], [146, 176]];
  const rows = Math.ceil(count / perRow), each = (width - left) / perRow;
  const values = sides.flatMap(({ replicates }) => replicates.flatMap(({ latencies }) => [latencies.reduce((one, other) => Math.min(one, other)), latencies.reduce((one, other) => Math.max(one, other))]));
  const log = Math.max(...values) > 3 * Math.min(...values);
  const known = sides.flatMap(({ replicates }) => replicates.flatMap(({ clocks }) => distinct(Array.from(clocks, (clock) => clock % THROTTLED)))).filter(Boolean);
  const svg = frame(width, height * rows, `Latency of ${sides.map(({ name }) => name).join(" and ")} over rounds in ${count} replicates${known.length ? ", with the SM clock below" : ""}`);
  for (let row = 0; row < rows; row++) {
    const group = s("g", { transform: `translate(0, ${row * height})` }), y = scale(values, [upper[1], upper[0]], { log });
    group.append(...yAxis(y, left, width, `latency (µs${log ? ", log" : ""})`, 11));
    const clock = known.length ? scale(known, [lower[1], lower[0]]) : undefined;
    if (clock) {
      const ends = distinct([Math.min(...known), Math.max(...known)]);
      group.append(s("text", { x: left, y: 142, class: "title" }, "SM clock (MHz)"), ...ends.map((mhz) => s("text", { x: left - 5, y: clock(mhz) + 3.5, "text-anchor": "end" }, String(mhz))));
    }
    for (let replicate = row * perRow; replicate < Math.min(count, (row + 1) * perRow); replicate++) {
      const from = left + (replicate - row * perRow) * each, here = sides.map((side) => ({ colour: side.colour, ...side.replicates[replicate] })).filter(({ latencies }) => latencies);
      if (!here.length) continue;
      const most = Math.max(...here.map(({ latencies }) => latencies.length)), x = scale([0, Math.max(1, most - 1)], [from + 2, from + each - 4], { pad: 0 });
      group.append(s("line", { x1: from, x2: from, y1: upper[0] - 4, y2: lower[1], class: "grid" }));
      for (const { latencies, clocks, colour } of here) {
        const step = Math.ceil(latencies.length / MOST_DOTS), d = [], held = [], run = [];
        for (let place = 0; place < latencies.length; place += step) {
          d.push(`M${x(place).toFixed(1)},${y(latencies[place]).toFixed(1)}h0`);
          const mhz = clocks[place] % THROTTLED;
          if (clock && mhz) (clocks[place] >= THROTTLED ? held : run).push(`M${x(place).toFixed(1)},${clock(mhz).toFixed(1)}h0`);
        }
        group.append(s("path", { class: "samples", style: `stroke: ${colour}`, d: d.join("") }), s("path", { class: "clock", d: run.join("") }), s("path", { class: "clock held", d: held.join("") }));
      }
      const [start, end] = here[0].seconds;
      group.append(s("text", { x: from + 3, y: height - 6 }, each > 90 ? `replicate ${replicate}, ${(end - start).toFixed(1)} s` : `r${replicate}`));
    }
    svg.append(group);
  }
  const note = h("p", { class: "note" }, `A dot for each sample, replicates side by side${known.length ? "; SM clock below, red where the card throttled" : "; the SM clock was not read"}.`);
  return h("div", {}, svg, note);
}

function ecdf(sides, width, by) {
  const [left, right, top, bottom, height] = [46, width - 8, 22, 150, 186];
  const curves = sides.map((side) => ({ ...side, sorted: (by === "replicate" ? side.replicates.map(({ latencies }) => latencies) : [side.replicates.flatMap(({ latencies }) => latencies)]).map((values) => Float64Array.from(values).sort()) }));
  const ends = curves.flatMap(({ sorted }) => sorted.flatMap((values) => [values[0], values.at(-1)]));
  const log = Math.max(...ends) > 3 * Math.min(...ends), x = scale(ends, [left, right], { log, pad: 0.02 }), y = scale([0, 1], [bottom, top], { pad: 0 });
  const svg = frame(width, height, `Empirical distribution of ${sides.map(({ name }) => name).join(", ")}`);
  svg.append(...yAxis(y, left, right, "share of samples", 12));
  let edge = -Infinity;
  for (const value of x.ticks) {
    const room = 6.4 * plain(value).length;
    if (x(value) - room / 2 < edge || x(value) + room / 2 > width) continue;
    svg.append(s("text", { x: x(value), y: bottom + 14, "text-anchor": "middle" }, plain(value)));
    edge = x(value) + room / 2 + 4;
  }
  svg.append(s("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle", class: "title" }, `latency (µs${log ? ", log" : ""})`));
  for (const { colour, dashed, sorted } of curves) {
    for (const values of sorted) {
      const step = Math.ceil(values.length / MOST_DOTS), d = [`M${x(values[0]).toFixed(1)},${bottom}`];
      for (let place = 0; place < values.length; place += step) d.push(`H${x(values[place]).toFixed(1)}V${y((place + 1) / values.length).toFixed(1)}`);
      svg.append(s("path", { class: "curve", style: `stroke: ${colour}${dashed ? "; stroke-dasharray: 5 3" : ""}`, d: `${d.join("")}H${x(values.at(-1)).toFixed(1)}V${y(1)}` }));
    }
  }
  return svg;
}

// ---------------------------------------------------------------------------------------------- flips, and run B

// The pair of the two runs chosen, and whether run A is its other one; undefined without run B.
function pairOf(explorer) {
  const { state, data } = explorer;
  if (state.against === "none") return undefined;
  const swapped = state.shown !== data.runs[0], other = swapped ? state.run : state.against;
  const pair = data.pairs.find((one) => data.runs[one.other].name === other);
  return pair && { ...pair, swapped };
}

function shownHere(state, name, candidate) {
  const place = state.shown.shapeAt.get(name);
  return place !== undefined && state.visible.includes(place) && (candidate === state.baseline || state.candidates.includes(candidate));
}

function makeFlips(explorer, part) {
  const { state } = explorer, pair = pairOf(explorer);
  const all = [...state.shown.flips, ...(pair?.flips ?? [])].filter(({ shape, candidate }) => shownHere(state, shape, candidate));
  const rows = all.map(({ shape, candidate, by, words }) => [
    h("button", { type: "button", "data-at": `${shape}/${candidate}/${by}`, onclick: () => explorer.choose({ shape, candidate }) }, state.shown.shapes[state.shown.shapeAt.get(shape)].label),
    h("code", {}, candidate), by.join(", "), h("span", { class: "words" }, ...rich(words))]);
  const none = (state.shown.verdicts[state.shown.baseline].case ?? []).length ? "Among what is chosen, no sign flips." : "This run holds no verdicts.";
  part.replaceChildren(h("h2", {}, `Where the sign hangs on the clock, the cache or the run (${all.length})`),
    h("p", {}, ...rich(`Candidates that are faster than \`${state.shown.baseline}\` by one timing or run and slower by another.`)),
    rows.length ? table(["shape", "candidate", "flips with", "verdicts"], rows, "flips") : h("p", { class: "notice" }, none));
}

function makeBeside(explorer, part) {
  const { state, data } = explorer, pair = pairOf(explorer), start = [h("h2", {}, "Run A against run B")];
  if (!pair) {
    part.replaceChildren(...start, h("p", { class: "notice" }, data.runs.length > 1 ? "No run B is chosen." : "There is no other complete run of a device of this name."));
    return;
  }
  const { clock, cache } = state.shown.timings[state.timing];
  const here = pair.deltas.filter(([timing, shape, name]) => timing === `${clock} ${cache}` && shownHere(state, shape, name));
  const rows = here.map(([, shape, name, mine, theirs, n, m, change, back, p, source]) => {
    const [a, b, delta] = pair.swapped ? [theirs, mine, back] : [mine, theirs, change];
    return [h("code", {}, name), state.shown.shapes[state.shown.shapeAt.get(shape)].label, b, a, delta, `${p} n=${pair.swapped ? `${n}+${m}` : `${m}+${n}`}`, source ? "other source" : ""];
  });
  const changed = rows.filter((row) => row[4] !== "~"), same = rows.filter((row) => row[4] === "~");
  const titles = ["case", "shape", `B (µs) [${data.confidence}]`, `A (µs) [${data.confidence}]`, "delta", "", ""];
  const rest = h("details", { ontoggle: () => rest.children.length > 1 || rest.append(table(titles, same, "cases without a change that can be shown")) }, h("summary", {}, `${same.length} without a change that can be shown`));
  part.replaceChildren(...[...start,
    h("p", {}, ...rich(`From \`${state.against}\` (B) to \`${state.run}\` (A), ${state.shown.timings[state.timing].words}: ${changed.length} of ${here.length} medians changed; \`~\` where no change can be shown. p-values are adjusted by Holm over all cases under the timing; a minus is faster in A.`)),
    rows.length ? null : h("p", { class: "notice" }, "The two share no case among what is chosen."),
    changed.length ? table(titles, changed, "run A against run B") : null, same.length ? rest : null].filter(Boolean));
}

// ----------------------------------------------------------------------------------------------------------- cite

function makeCite(explorer, part) {
  const { state } = explorer, run = state.shown, shape = run.shapes[state.place], quoted = JSON.stringify;
  const link = explorer.model.address?.() ?? `reports/${run.name}/explore.html${hashOf(explorer.model.get("state") ?? {})}`;
  const python = [
    `from attnlab import Shape, obtain`,
    `shape = Shape(${[shape.batch, shape.heads, shape.seq_len, shape.head_dim].join(", ")}, causal=${shape.causal ? "True" : "False"}, dtype=${quoted(shape.dtype)}${extra(shape)})`,
    `results = obtain.results(${quoted(run.name)}, device="none")`,
    `results.compare(${quoted(state.candidate)}, shape, results.timings[${state.timing}])`,
  ].join("\n");
  const commands = `make report RUN=${run.name}`;
  part.replaceChildren(h("h2", {}, "Cite"),
    copied("Link to this view", link), copied("Render the run again, from its samples", commands),
    state.baseline === run.baseline ? copied("The verdict of the selected cell in Python", python) : "",
    h("p", {}, h("button", { type: "button", onclick: () => download(explorer) }, "Download what the matrix shows as CSV")));
}

const extra = (shape) => [
  shape.kv_heads === shape.heads ? "" : `, kv_heads=${shape.kv_heads}`, shape.kv_len === shape.seq_len ? "" : `, kv_len=${shape.kv_len}`,
  shape.lengths === "equal" ? "" : `, lengths="${shape.lengths}"`, shape.direction === "forward" ? "" : `, direction="${shape.direction}"`].join("");

function copied(label, text) {
  const said = h("span", { role: "status", class: "note" });
  const area = h("pre", { tabindex: 0 }, text);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(area);
      said.textContent = "selected: copy it with Ctrl+C";
    }
  };
  return h("div", { class: "copied" }, h("p", {}, `${label}: `, h("button", { type: "button", onclick: copy, "aria-label": `Copy: ${label}` }, "copy"), " ", said), area);
}

// The rows of the matrix, as text.
function csv(state) {
  const run = state.shown, { clock, cache } = run.timings[state.timing], axes = ["batch", "heads", "seq_len", "head_dim", "causal", "dtype", "kv_heads", "kv_len", "lengths", "direction"];
  const quote = (value) => (/[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  const rows = [["run", "implementation", ...axes, "clock", "cache", "samples", "median_us", "low_us", "high_us", "baseline", "verdict", "speedup", "speedup_low", "speedup_high"]];
  for (const place of state.visible) {
    for (const name of [state.baseline, ...state.candidates]) {
      const row = caseAt(state, place, name), verdict = verdictAt(state, place, name), { cases } = run;
      if (row === undefined || (state.claim === "claimable" && verdict?.kind !== "faster, claimable" && name !== state.baseline)) continue;
      rows.push([run.name, name, ...axes.map((axis) => run.shapes[place][axis]), clock, cache, cases.samples[row], cases.latency[row], cases.low_us[row], cases.high_us[row], state.baseline, verdict?.kind, verdict?.speedup, verdict?.low, verdict?.high]);
    }
  }
  return rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";
}

function download(explorer) {
  const address = URL.createObjectURL(new Blob([csv(explorer.state)], { type: "text/csv" }));
  h("a", { href: address, download: `${explorer.state.run}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// -------------------------------------------------------------------------------------------------------- address

// What is chosen as the part of an address after its #, and back.
function hashOf(state) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (Array.isArray(value)) (value.length ? value : [""]).forEach((one) => parts.append(name, one));
    else if (value !== undefined) parts.append(name, value);
  }
  return parts.size ? `#${parts}` : "";
}

function stateOf(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, "")), state = {};
  for (const name of parts.keys()) state[name] = name === "candidates" ? parts.getAll(name).filter(Boolean) : parts.get(name);
  return state;
}

// What each section is drawn from; it stays where none of that changed.
const CELL = ["baseline", "timing", "by", "place", "candidate"];
const SHOWN = ["baseline", "timing", "candidates", "visible"];
const SECTIONS = {
  find: { needs: ["find", "baseline", "timing", "place"], make: makeFind },
  matrix: { needs: [...SHOWN, "metric", "by", "claim", "place", "candidate"], make: makeMatrix },
  lines: { needs: [...CELL, "candidates", "axis", "metric", "claim"], make: makeLines },
  cell: { needs: CELL, make: makeCell },
  flips: { needs: ["against", ...SHOWN], make: makeFlips },
  beside: { needs: ["against", ...SHOWN], make: makeBeside },
  cite: { needs: [...CELL, ...KNOWN], make: makeCite },
};

export default { render };
