// Shapes found in words, and the implementation with the smallest median there.

const MOST_FOUND = 12;

const DTYPES = { __proto__: null, fp16: "float16", half: "float16", bf16: "bfloat16", fp32: "float32" };
for (const dtype of ["float16", "bfloat16", "float32"]) DTYPES[dtype] = dtype;
const SIZES = { __proto__: null, b: "batch", h: "heads", s: "seq_len", d: "head_dim", keys: "kv_len", kv: "kv_heads" };
for (const axis of ["batch", "heads", "seq_len", "head_dim"]) SIZES[axis] = axis;
SIZES.queries = "seq_len";
const DEVICES = ["h100", "h200"];
// What plain self-attention is besides its sizes.
const PLAIN = { lengths: "equal", direction: "forward", layout: "heads first", scale: 0, values: "normal" };
// What a kind of attention differs in from that.
const KINDS = {
  __proto__: null,
  gqa: { axis: "kv_heads" },
  mqa: { axis: "kv_heads", wanted: { kv_heads: 1 } },
  decode: { axis: "kv_len", wanted: { seq_len: 1 } },
  decoding: { axis: "kv_len", wanted: { seq_len: 1 } },
  varlen: { axis: "lengths" },
  training: { axis: "direction" },
};

// What a request such as "S=1000 causal bf16", "32 8 512 64" or "target gqa" names; words that say nothing are returned
// too. A number alone is a length: of keys where one query is asked for; "16k" is 16384, "8192 keys" is "keys=8192". Kinds
// of values are named as in `kinds`, devices by a word of their names, as in `devices`.
function requested(text, target, kinds, devices) {
  const wanted = {},
    unknown = [],
    numbers = [];
  const named = [...kinds].find((kind) => ` ${text.toLowerCase()} `.includes(` ${kind} `));
  if (named) wanted.drawn = named;
  for (const word of text
    .toLowerCase()
    .replace(named ?? "", "")
    .replace(/\b(\d+)k\b/g, (_, thousands) => 1024 * thousands)
    .replace(/\b(\d+)[ -]?(keys|queries|heads)\b/g, "$2=$1")
    .split(/[\s,;()]+/)
    .filter(Boolean)) {
    const [, axis, size] = word.match(/^([a-z_]+)[=:]?(\d+)$/) ?? [];
    if (DTYPES[word]) wanted.dtype = DTYPES[word];
    else if (isNaN(word) && devices.includes(word)) wanted.devices = [...(wanted.devices ?? []), word];
    else if (word === "target")
      for (const axis of ["batch", "heads", "seq_len", "head_dim", "causal", "dtype"]) wanted[axis] = target[axis];
    else if (KINDS[word]) Object.assign(wanted, KINDS[word].wanted, { kinds: [...(wanted.kinds ?? []), word] });
    else if (Number(word) > 0) numbers.push(word);
    else if (word === "causal" || word === "full") wanted.causal = word === "causal";
    else if (SIZES[axis] && Number(size) > 0) wanted[SIZES[axis]] = Number(size);
    else unknown.push(word);
  }
  const axes = numbers.length === 1 ? [wanted.seq_len === 1 ? "kv_len" : "seq_len"] : Object.keys(LETTERS).slice(0, 4);
  if (numbers.length === axes.length) axes.forEach((axis, place) => (wanted[axis] = Number(numbers[place])));
  else unknown.push(...numbers);
  return { wanted, unknown };
}

// In what a shape differs from what is wanted, in words, and how far it is: another mask or type counts as much as a
// factor of two, another kind of attention as one of four.
function apart(shape, wanted) {
  const sizes = Object.keys(LETTERS).filter((axis) => wanted[axis] && shape[axis] !== wanted[axis]);
  const words = ["causal", "dtype"]
    .filter((axis) => axis in wanted && shape[axis] !== wanted[axis])
    .map((axis) => (axis === "causal" ? mask(shape) : shape.dtype));
  const asked = (wanted.kinds ?? []).map((kind) => [kind, KINDS[kind].axis]),
    there = special(shape, wanted.drawn);
  const kinds = [
    ...there.filter(([axis]) => !wanted[axis] && !asked.some(([, one]) => one === axis)).map(([, words]) => words),
    ...asked.filter(([, axis]) => !there.some(([one]) => one === axis)).map(([kind]) => `no ${kind}`),
  ];
  const distance = sizes.reduce(
    (sum, axis) => sum + Math.abs(Math.log2(shape[axis] / wanted[axis])),
    words.length + 2 * kinds.length,
  );
  return { differs: [...sizes.map((axis) => `${LETTERS[axis]}=${shape[axis]}`), ...words, ...kinds], distance };
}

// What a shape is beside a forward pass of plain self-attention on these values: the axes, and words for them.
function special(shape, values = PLAIN.values) {
  const plain = { kv_heads: shape.heads, kv_len: shape.seq_len, ...PLAIN, values };
  const words = {
    kv_heads: `${shape.kv_heads} KV heads`,
    kv_len: `${shape.kv_len} keys`,
    lengths: `${shape.lengths} lengths`,
    direction: shape.direction,
    layout: shape.layout,
    scale: `scale ${shape.scale}`,
    values: `${shape.values} values`,
  };
  return Object.entries(words).filter(([axis]) => shape[axis] !== plain[axis]);
}

function makeFind(explorer, part) {
  const { state } = explorer;
  if (!part.firstChild) {
    const input = h("input", {
      id: `${explorer.prefix}-find`,
      type: "search",
      placeholder: "4096 causal, 32 8 512 64, gqa",
      autocomplete: "off",
      spellcheck: "false",
      "data-at": "find",
    });
    const form = h(
      "form",
      {
        class: "find",
        role: "search",
        onsubmit: (event) => {
          event.preventDefault();
          explorer.choose({ find: input.value.trim() || undefined });
        },
      },
      h("label", { for: `${explorer.prefix}-find` }, "Which kernel for"),
      input,
      h("button", { type: "submit" }, "Find"),
    );
    part.append(h("h2", {}, "Which kernel?"), form, h("div", { class: "found", "aria-live": "polite" }));
  }
  part.querySelector("input").value = state.find;
  part
    .querySelector(".found")
    .replaceChildren(...(state.find ? found(explorer) : [said(answer(state))]));
}

// A sentence on the selected shape.
function answer(state) {
  const run = state.shown,
    first = fastest(run, state.timing, state.place),
    { label } = run.shapes[state.place],
    { words } = run.timings[state.timing];
  if (!first) return `Nothing has a latency at ${label}, ${words}.`;
  const [name, row] = first,
    verdict = verdictAt(state, state.place, name);
  const compared = verdict
    ? ` Compared with \`${baselineAt(state, state.place)}\`: ${judged(verdict)}.`
    : row === caseAt(state, state.place, state.baseline)
      ? " It is the baseline."
      : "";
  return `At ${label}, ${words}: \`${name}\` has the smallest median, ${run.cases.interval[row]} µs.${compared}`;
}

const deviceWords = (run) => run.device.toLowerCase().split(/\s+/);

function found(explorer) {
  const { state, data } = explorer,
    kinds = new Set(data.runs.flatMap((run) => run.shapes.map((shape) => shape.values))),
    devices = [...DEVICES, ...data.runs.flatMap(deviceWords)],
    { wanted, unknown } = requested(state.find, state.shown.shapes[state.shown.target], kinds, devices);
  const refused = unknown.length
    ? [
        notice(
          `Not understood: ${unknown.join(", ")}. A request names B, H, S, D, keys, queries or KV with a number above 0, S alone or all of B, H, S and D by numbers only, causal or full, fp16, bf16 or fp32, gqa, mqa, decode, varlen or training, a kind of values, a device, or the target.`,
        ),
      ]
    : [];
  if (!Object.keys(wanted).length) return refused;
  const ofDevice = (run) => (wanted.devices ?? []).every((word) => deviceWords(run).includes(word));
  const here = data.runs.filter(ofDevice);
  if (!here.length) {
    const device = wanted.devices.join(" ").toUpperCase();
    const words = `No run of an ${device} is in this page.${leftOut(data.left_out.filter(ofDevice))}`;
    return [...refused, notice(...rich(words))];
  }
  const near = here.flatMap((run) => {
    const timing = timingOf(run, state);
    const there = run.shapes.map((shape, place) => ({
      run,
      shape,
      place,
      first: fastest(run, timing, place),
      ...apart(shape, wanted),
    }));
    return there.filter(({ first }) => first);
  });
  if (!near.length) return [...refused, notice("No run here has a latency under this clock and cache.")];
  // Of shapes as far away first those of the run that is shown, then of its device, and of these the newest.
  const elsewhere = ({ run }) => (run !== state.shown) + (run.device !== state.shown.device);
  const newer = (one, other) => other.run.created.localeCompare(one.run.created);
  near.sort((one, other) => one.distance - other.distance || elsewhere(one) - elsewhere(other) || newer(one, other));
  const rows = near.slice(0, MOST_FOUND).map(({ run, shape, first: [name, row], differs }) => {
    const verdict = run.verdictAt[run.baseline].get(row);
    const kind = name === run.baseline ? "is the baseline" : verdict === undefined ? "not compared" : judged(verdict);
    const chosen = { ...unset(OF_RUN), run: run === data.runs[0] ? undefined : run.name, shape: shape.name };
    return [
      button(shape.label, () => explorer.choose(chosen), { "data-at": `${run.name}/${shape.name}` }),
      differs.length ? differs.join(", ") : "nothing: as asked",
      [h("code", {}, name), run.changed.includes(name) ? ", changed since" : ""],
      run.cases.interval[row],
      kind,
      titled(run, state.shown),
    ];
  });
  const exact = near[0].differs.length === 0;
  const words = `${exact ? "Measured as asked" : "No run here measured exactly this; the nearest that were"}, ${state.shown.timings[state.timing].words}:`;
  const titles = ["shape", "differs in", "smallest median", `median (µs) [${data.confidence}]`];
  titles.push("against the run's baseline", "run");
  return [...refused, h("p", {}, words), table(titles, rows, "shapes found")];
}
