// What a request for a shape names, and how far a shape is from it.

const DTYPES = { __proto__: null, fp16: "float16", half: "float16", bf16: "bfloat16", fp32: "float32" };
for (const dtype of ["float16", "bfloat16", "float32"]) DTYPES[dtype] = dtype;
const SIZES = { b: "batch", h: "heads", head: "heads", s: "seq_len", d: "head_dim", key: "kv_len", keys: "kv_len" };
Object.assign(SIZES, { kv: "kv_heads", query: "seq_len", queries: "seq_len" });
for (const axis of ["batch", "heads", "seq_len", "head_dim", "kv_len"]) SIZES[axis] = axis;
// A size behind its name, or a number before what it counts.
const SIZE = new RegExp(
  `\\b(?:(${Object.keys(SIZES).join("|")})\\s*[=:]?\\s*(\\d+)|(\\d+)[\\s-]*(kv|heads?|keys?|query|queries))\\b`,
  "g",
);
const DEVICES = ["h100", "h200"];
// What plain self-attention is besides its sizes.
const PLAIN = { lengths: "equal", direction: "forward", layout: "heads first", scale: 0, values: "normal" };
// What a kind of attention differs in from that, and in what it may.
const KINDS = {
  __proto__: null,
  gqa: { axis: "kv_heads" },
  mqa: { axis: "kv_heads", wanted: { kv_heads: 1 } },
  decode: { axis: "kv_len", may: "kv_heads", wanted: { seq_len: 1 } },
  decoding: { axis: "kv_len", may: "kv_heads", wanted: { seq_len: 1 } },
};

// The words of the labels of these shapes for all but sizes, the longest first: an axis, and what each stands for there.
function phrasesOf(shapes) {
  const phrases = new Map([["varlen", { axis: "lengths", values: new Set() }]]);
  const add = (phrase, axis, value) => {
    if (!phrases.has(phrase)) phrases.set(phrase, { axis, values: new Set() });
    phrases.get(phrase).values.add(value);
  };
  for (const shape of shapes) {
    for (const axis of Object.keys(PLAIN)) {
      add(spelled(shape)[axis], axis, shape[axis]);
      if (axis !== "scale") add(shape[axis], axis, shape[axis]);
    }
    add(shape.values.split(" ")[0], "values", shape.values);
    if (shape.lengths !== PLAIN.lengths) add("varlen", "lengths", shape.lengths);
  }
  return [...phrases].sort(([one], [other]) => other.length - one.length);
}

// What a request such as "S=1000 causal bf16", "32 8 512", "target gqa" or the label of a shape names; words that say
// nothing are returned too. A number alone is a length: of keys where one query is asked for; "16k" is 16384. Devices are
// named by a word of their names, as in `devices`. Of two words that contradict each other the first counts.
function requested(request, target, shapes, devices) {
  const wanted = {},
    unknown = [],
    numbers = [];
  let text = request
    .toLowerCase()
    .replace(/\b(\d+)k\b/g, (_, thousands) => 1024 * thousands)
    .replace(/(\d)\s*[x×]\s*(?=\d)/g, "$1 ")
    .replace(/\bno[nt]?[\s-]*causal\b/g, "full")
    .replace(/\bkv[\s_-]*heads?\b/g, "kv");
  for (const [phrase, { axis, values }] of phrasesOf(shapes)) {
    const escaped = phrase.replace(/[^\w ]/g, "\\$&");
    const rest = text.replace(new RegExp(`(?<![\\w.])${escaped}(?![\\w.])`, "g"), " ");
    if (rest !== text) wanted[axis] = [...(wanted[axis] ?? []), ...values];
    text = rest;
  }
  text = text.replace(SIZE, (whole, before, size, count, after) => {
    if (devices.includes(whole) || !(Number(size ?? count) > 0)) return whole;
    wanted[SIZES[before ?? after]] = Number(size ?? count);
    return " ";
  });
  for (const word of text.split(/[\s,;()]+/).filter(Boolean)) {
    const isCausal = word === "causal";
    if (DTYPES[word] && [undefined, DTYPES[word]].includes(wanted.dtype)) wanted.dtype = DTYPES[word];
    else if (isNaN(word) && devices.includes(word)) wanted.devices = [...(wanted.devices ?? []), word];
    else if (KINDS[word]) Object.assign(wanted, KINDS[word].wanted, { kinds: [...(wanted.kinds ?? []), word] });
    else if (Number(word) > 0) numbers.push(word);
    else if ((isCausal || word === "full") && [undefined, isCausal].includes(wanted.causal)) wanted.causal = isCausal;
    else if (word === "fp8" || word === "e4m3") wanted.fp8 = true;
    else if (word === "target") {
      for (const axis of ["batch", "heads", "seq_len", "head_dim", "causal", "dtype"]) wanted[axis] ??= target[axis];
    } else if (word !== "values") unknown.push(word);
  }
  const length = wanted.seq_len === 1 ? "kv_len" : "seq_len";
  const axes = numbers.length === 1 ? [length] : ["batch", "heads", "seq_len", "head_dim"].slice(0, numbers.length);
  if (numbers.length !== 2 && numbers.length === axes.length)
    axes.forEach((axis, place) => (wanted[axis] = Number(numbers[place])));
  else unknown.push(...numbers);
  if (wanted.seq_len === 1 && !wanted.kv_len) wanted.kinds = distinct([...(wanted.kinds ?? []), "decode"]);
  return { wanted, unknown };
}

// In what a shape differs from what is wanted, in words, and how far it is: another mask or type counts as much as a
// factor of two, what is more than plain attention and wasn't asked for as one of four, a kind that is missing as one
// of 64. What a kind that was asked for may differ in is no difference; plain shapes come first.
function apart(shape, wanted) {
  const sizes = Object.keys(LETTERS).filter((axis) => wanted[axis] && shape[axis] !== wanted[axis]);
  const words = ["causal", "dtype"]
    .filter((axis) => axis in wanted && shape[axis] !== wanted[axis])
    .map((axis) => (axis === "causal" ? mask(shape) : shape.dtype));
  const there = special(shape, wanted),
    asked = (wanted.kinds ?? []).map((kind) => [kind, KINDS[kind].axis]),
    may = asked.map(([kind]) => KINDS[kind].may);
  const unasked = there.filter(([axis]) => !(axis in LETTERS && wanted[axis]) && !asked.some(([, one]) => one === axis)),
    others = unasked.filter(([axis]) => !may.includes(axis));
  const missing = asked.filter(([, axis]) => !there.some(([one]) => one === axis)).map(([kind]) => `no ${kind}`);
  const lacking = missing.length + others.filter(([axis]) => wanted[axis]).length;
  const distance = sizes.reduce(
    (sum, axis) => sum + Math.abs(Math.log2(shape[axis] / wanted[axis])),
    words.length + 2 * (others.length + missing.length) + 4 * lacking + (unasked.length - others.length) / 16,
  );
  const kinds = [...others.map(([, words]) => words), ...missing];
  return { differs: [...sizes.map((axis) => `${LETTERS[axis]}=${shape[axis]}`), ...words, ...kinds], distance };
}

// Words for what a shape is besides its sizes.
const spelled = (shape) => ({
  lengths: `${shape.lengths} lengths`,
  direction: shape.direction,
  layout: shape.layout,
  scale: `scale ${shape.scale}`,
  values: `${shape.values} values`,
});

// What a shape is beside a forward pass of plain self-attention, or beside what is wanted: the axes, and words for them.
function special(shape, wanted = {}) {
  const plain = { kv_heads: shape.heads, kv_len: shape.seq_len, ...PLAIN };
  const words = { kv_heads: `${shape.kv_heads} KV heads`, kv_len: `${shape.kv_len} keys`, ...spelled(shape) };
  const isAsked = (axis) => (axis in PLAIN && wanted[axis] ? wanted[axis] : [plain[axis]]).includes(shape[axis]);
  return Object.entries(words).filter(([axis]) => !isAsked(axis));
}
