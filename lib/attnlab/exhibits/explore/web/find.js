// Shapes found in words, and the implementation with the smallest median there.

const MOST_FOUND = 12;

const DTYPES = {
  __proto__: null,
  fp16: "float16",
  half: "float16",
  float16: "float16",
  bf16: "bfloat16",
  bfloat16: "bfloat16",
  fp32: "float32",
  float32: "float32",
};
const SIZES = {
  __proto__: null,
  b: "batch",
  batch: "batch",
  h: "heads",
  heads: "heads",
  s: "seq_len",
  seq_len: "seq_len",
  d: "head_dim",
  head_dim: "head_dim",
};

// What a request such as "S=1000 causal bf16" names; words that say nothing are returned too.
function requested(text) {
  const wanted = {},
    unknown = [];
  for (const word of text
    .toLowerCase()
    .split(/[\s,;]+/)
    .filter(Boolean)) {
    const [, axis, size] = word.match(/^([a-z_]+)[=:]?(\d+)$/) ?? [];
    if (DTYPES[word]) wanted.dtype = DTYPES[word];
    else if (word === "causal" || word === "full") wanted.causal = word === "causal";
    else if (SIZES[axis] && Number(size) > 0) wanted[SIZES[axis]] = Number(size);
    else unknown.push(word);
  }
  return { wanted, unknown };
}

// In what a shape differs from what is wanted, in words, and how far it is: another mask or type counts as much as a
// factor of two, another kind of attention as one of four.
function apart(shape, wanted) {
  const sizes = ["batch", "heads", "seq_len", "head_dim"].filter(
    (axis) => wanted[axis] && shape[axis] !== wanted[axis],
  );
  const words = ["causal", "dtype"]
    .filter((axis) => axis in wanted && shape[axis] !== wanted[axis])
    .map((axis) => (axis === "causal" ? mask(shape) : shape.dtype));
  const kinds = special(shape);
  const distance = sizes.reduce(
    (sum, axis) => sum + Math.abs(Math.log2(shape[axis] / wanted[axis])),
    words.length + 2 * kinds.length,
  );
  return { differs: [...sizes.map((axis) => `${LETTERS[axis]}=${shape[axis]}`), ...words, ...kinds], distance };
}

// What a shape is beside a forward pass of plain self-attention.
function special(shape) {
  const plain = { kv_heads: shape.heads, kv_len: shape.seq_len, lengths: "equal", direction: "forward" };
  const words = {
    kv_heads: `${shape.kv_heads} KV heads`,
    kv_len: `${shape.kv_len} keys`,
    lengths: `${shape.lengths} lengths`,
    direction: shape.direction,
  };
  return Object.keys(plain)
    .filter((axis) => shape[axis] !== plain[axis])
    .map((axis) => words[axis]);
}

function makeFind(explorer, part) {
  const { state, data } = explorer;
  if (!part.firstChild) {
    const input = h("input", {
      id: `${explorer.prefix}-find`,
      type: "search",
      placeholder: "S=1000 causal bf16",
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
    .replaceChildren(...(state.find ? found(explorer) : [h("p", {}, ...rich(answer(state, data)))]));
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
  const judged = verdict
    ? ` Compared with \`${state.baseline}\`: ${verdict.kind} (${verdict.cells[0]}).`
    : name === state.baseline
      ? " It is the baseline."
      : "";
  return `At ${label}, ${words}: \`${name}\` has the smallest median, ${run.cases.interval[row]} µs.${judged}`;
}

function found(explorer) {
  const { state, data } = explorer,
    { wanted, unknown } = requested(state.find);
  const said = unknown.length
    ? [
        h(
          "p",
          { class: "notice" },
          `Not understood: ${unknown.join(", ")}. A request names S, B, H or D with a number above 0, causal or full, fp16, bf16 or fp32.`,
        ),
      ]
    : [];
  if (!Object.keys(wanted).length) return said;
  const near = data.runs.flatMap((run) => {
    const timing = run.timings.findIndex((one) => one.clock === state.clock && one.cache === state.cache);
    const there = run.shapes.map((shape, place) => ({
      run,
      shape,
      place,
      first: fastest(run, timing, place),
      ...apart(shape, wanted),
    }));
    return there.filter(({ first }) => first);
  });
  if (!near.length)
    return [...said, h("p", { class: "notice" }, "No run here has a latency under this clock and cache.")];
  near.sort((one, other) => one.distance - other.distance);
  const rows = near.slice(0, MOST_FOUND).map(({ run, shape, first: [name, row], differs }) => {
    const verdict = run.verdictAt[run.baseline].get(row);
    const kind =
      name === run.baseline
        ? "is the baseline"
        : verdict === undefined
          ? "not compared"
          : `${verdict.kind} (${verdict.cells[0]})`;
    const select = () =>
      explorer.choose({
        run: run === data.runs[0] ? undefined : run.name,
        shape: shape.name,
        candidate: undefined,
        candidates: undefined,
        mask: undefined,
        dtype: undefined,
        dim: undefined,
        baseline: undefined,
        against: undefined,
        axis: undefined,
      });
    return [
      h("button", { type: "button", onclick: select, "data-at": `${run.name}/${shape.name}` }, shape.label),
      differs.length ? differs.join(", ") : "nothing: as asked",
      h("code", {}, name),
      run.cases.interval[row],
      kind,
      run.name,
    ];
  });
  const exact = near[0].differs.length === 0;
  const words = `${exact ? "Measured as asked" : "No run here measured exactly this; the nearest that were"}, ${state.shown.timings[state.timing].words}:`;
  return [
    ...said,
    h("p", {}, words),
    table(
      [
        "shape",
        "differs in",
        "smallest median",
        `median (µs) [${data.confidence}]`,
        "against the run's baseline",
        "run",
      ],
      rows,
      "shapes found",
    ),
  ];
}
