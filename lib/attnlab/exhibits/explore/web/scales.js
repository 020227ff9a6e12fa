// Scales, ticks and axes.

// A scale from values to pixels, with ticks; logarithmic where it spans much or is a ratio.
function scale(values, [from, to], { log, around, pad = 0.04 } = {}) {
  let low = Math.min(...values),
    high = Math.max(...values);
  if (around !== undefined) [low, high] = [Math.min(low, around), Math.max(high, around)];
  if (!(low < high)) [low, high] = low > 0 ? [low / 1.05, high * 1.05] : [low - 1, high + 1];
  const to01 = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  const at = (value) => from + (to - from) * (pad + (1 - 2 * pad) * to01(value));
  const marks = log ? logTicks(low, high) : ticks(low, high);
  return Object.assign(at, { ticks: marks.filter((mark) => to01(mark) >= -pad && to01(mark) <= 1 + pad) });
}

function ticks(low, high, about = 5) {
  const raw = (high - low) / about,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  return Array.from({ length: 12 }, (_, place) => (Math.ceil(low / step) + place) * step).filter(
    (value) => value <= high * (1 + 1e-9),
  );
}

function logTicks(low, high) {
  if (high / low < 6) return ticks(low, high, 6).filter((value) => value > 0);
  const subs = high / low > 100 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5];
  const decades = Array.from({ length: 16 }, (_, place) => 10 ** (place + Math.floor(Math.log10(low))));
  return decades
    .flatMap((decade) => subs.map((sub) => sub * decade))
    .filter((value) => value >= low / 1.01 && value <= high * 1.01);
}

const plain = (value) =>
  Math.abs(value) >= 1e6
    ? value.toExponential(0)
    : Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 6 });

function frame(width, height, words) {
  return s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words });
}

// Text in a drawing, at its start, middle or end.
const letters = (x, y, words, anchor = "start", attributes = {}) =>
  s("text", { x, y, "text-anchor": anchor, ...attributes }, words);

// The smallest and the largest; of many values, which are too many for arguments.
const endsOf = (values) => [Math.min, Math.max].map((end) => values.reduce((one, other) => end(one, other)));

function yAxis(y, left, right, title, top) {
  return [
    s("text", { x: left, y: top, class: "title" }, title),
    ...y.ticks.flatMap((value) => [
      s("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }),
      letters(left - 5, y(value) + 3.5, plain(value), "end"),
    ]),
  ];
}
