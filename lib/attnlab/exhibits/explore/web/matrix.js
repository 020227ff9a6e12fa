// The matrix of verdicts, shapes by candidates.

const LETTERS = { batch: "B", heads: "H", seq_len: "S", head_dim: "D", kv_heads: "KV", kv_len: "keys" };

// The sequence length of a shape, and in what else it differs from the target.
function briefly(shape, target) {
  const sizes = Object.keys(LETTERS).filter(
    (axis) =>
      axis === "seq_len" ||
      (shape[axis] !== target[axis] &&
        !(axis === "kv_len" && shape.kv_len === shape.seq_len) &&
        !(axis === "kv_heads" && shape.kv_heads === shape.heads)),
  );
  const words = ["dtype", ...Object.keys(PLAIN)]
    .filter((axis) => shape[axis] !== target[axis])
    .map((axis) =>
      axis === "scale" ? `scale ${shape.scale}` : shape[axis].replace("float", "fp").replace("bfp", "bf"),
    );
  return [
    ...sizes.map((axis) => `${LETTERS[axis]}=${shape[axis]}`),
    ...(shape.causal === target.causal ? [] : [mask(shape)]),
    ...words,
  ].join(" ");
}

function makeMatrix(explorer, part) {
  const { state, data } = explorer,
    run = state.shown;
  const shapes = inOrder(explorer).map((place) => run.shapes[place]),
    target = run.shapes[run.target];
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "shape"),
    state.candidates.map((name) => heading(explorer, name)),
  );
  const rows = shapes.map((shape) => {
    const cells = state.candidates.map((candidate) => matrixCell(explorer, run.shapeAt.get(shape.name), candidate)),
      mark = shape === target ? h("span", { class: "target" }, " target") : null,
      words = h("div", {}, briefly(shape, target), mark);
    return h("tr", {}, h("th", { scope: "row", title: shape.label }, words), cells);
  });
  const means = state.metric === "speedup" && state.by === "pooled" ? h("tfoot", {}, meansRow(state)) : null;
  const label = `Verdicts against ${state.baseline}, shapes by candidates`,
    onkeydown = (event) => move(explorer, event),
    parts = [h("thead", {}, head), h("tbody", {}, rows), means];
  const grid = h("table", { role: "grid", class: "matrix", "aria-label": label, onkeydown }, parts);
  const legend = Object.entries(data.verdicts).map(([kind, { sign }]) =>
    h("span", {}, h("span", { class: "key", "data-kind": kind }, sign), " ", defined(data, kind)),
  );
  const base = state.baseline === FASTEST ? "base: the fastest peer there, with its median in µs" : null;
  const over = state.baseline === FASTEST ? `the ${FASTEST} at each shape` : state.baseline;
  const speedup =
    state.by === "pooled" ? `the speedup over ${over}` : `in how many replicates the candidate's median is the smaller`;
  const what = state.metric === "speedup" ? speedup : data.metrics[state.metric].axis;
  const none = nothing(state),
    section = "the report, section 3.1",
    report = explorer.model.address ? h("a", { href: REPORT }, section) : section;
  const { scrollTop = 0, scrollLeft = 0 } = part.querySelector(".scroll") ?? {};
  part.replaceChildren(
    h("h2", {}, "Verdicts"),
    said(
      `Against \`${state.baseline}\`, ${run.timings[state.timing].words}; the number is ${what}.${compared(state)} A row names S, and what else differs from the target ${target.label}. Arrows move, Enter selects.`,
    ),
    none ? notice(none) : h("div", { class: "scroll" }, grid),
    h("p", { class: "legend" }, legend, base),
    h("p", { class: "note" }, "How a verdict is made of samples: ", report, reportAt(run, run === data.runs[0])),
  );
  grid.parentElement?.scrollTo(scrollLeft, scrollTop);
}

// Beside the page, which may have been sent without it.
const REPORT = "report.html#sec-one-verdict-from-samples-to-sentence";
const reportAt = ({ name }, isOwn) =>
  `${isOwn ? `, in reports/${name}/, where this page lies too` : ""}; make report RUN=${name} renders that of this run.`;

const counted = (shapes) => `${shapes} shape${shapes === 1 ? "" : "s"}`;

// Why the matrix has no cell, in words.
function nothing(state) {
  const { baseline, candidates, claim, shown, visible } = state,
    ours = judgedOurs(state);
  if (claim === "lost" && !visible.length) {
    const both = among(state).filter((place) => ours.some((name) => verdictAt(state, place, name)));
    const others = among(state).length - both.length,
      uncompared = others ? ` At ${others} more it can't be compared.` : "",
      by = shown.verdicts[baseline] ? "" : ` by more than ${100 * state.margin} %`;
    if (ours.length)
      return `Of ${counted(both.length)}, each kind of values counted, ${ours.join(" or ")} is slower${by} at none.${uncompared}`;
    return shown.ordered.some((name) => name.startsWith(OURS))
      ? `The baseline ${baseline} is ours: choose another to see where ours loses to it.`
      : "None of our kernels is in this run.";
  }
  if (!visible.length) return "No shape is left: choose another mask, dtype, D, values or kind of verdicts.";
  if (!candidates.length) return "No candidate is chosen.";
  return claim === "claimable" && !shown.verdicts[baseline]
    ? `Nothing can be claimed against ${baseline}: choose a baseline that isn't of medians alone.`
    : "";
}

// A candidate's title, by which the rows are put in order: smallest first, then largest, then as in the study.
function heading(explorer, candidate) {
  const orders = ["none", `${candidate} ascending`, `${candidate} descending`],
    now = orders.indexOf(explorer.state.order);
  const change = () => explorer.choose({ order: orders[(Math.max(now, 0) + 1) % 3] });
  const mark = now > 0 ? ["↑", "↓"][now - 1] : null;
  const words = [swatch(explorer, candidate), ...broken(candidate), mark];
  const title = button(words, change, { "data-at": `order/${candidate}`, title: "put the rows in order" });
  return h("th", { scope: "col", "aria-sort": now > 0 ? orders[now].split(" ")[1] : null }, title);
}

// The places that are shown, in the order that is chosen; those without a number come last.
function inOrder({ state, data }) {
  const [name, direction] = state.order.split(" "),
    sign = direction === "descending" ? -1 : 1;
  const number = (place) => sign * (pointAt(state, place, name, data.metrics)?.value ?? sign * Infinity);
  return direction ? state.visible.toSorted((one, other) => number(one) - number(other) || 0) : state.visible;
}

// The geometric mean of each candidate's speedups over the shapes shown, and over how many where it lacks some. Shapes
// that differ in values alone are one, which counts by the kind at which it is worst.
function meansRow(state) {
  const shapes = distinct(state.visible.map((place) => state.shown.kindsAt[place]));
  const all = shapes.map((places) => places.filter((place) => state.visible.includes(place))).filter(({ length }) => length);
  if (!all.length) return h("tr", {}, h("th", { scope: "row" }, "no geometric mean: zeros count in none"));
  const cells = state.candidates.map((name) => {
    const own = (place) => (isBaseline(state, place, name) ? 1 : Infinity);
    const speedups = (places) => places.map((place) => verdictAt(state, place, name)?.speedup ?? own(place));
    const logs = all.map((places) => Math.log(Math.min(...speedups(places)))).filter(Number.isFinite);
    if (!logs.length) return h("td", {}, "");
    const mean = Math.exp(logs.reduce((sum, one) => sum + one, 0) / logs.length);
    return h("td", {}, mean.toPrecision(4), logs.length < all.length ? ` of ${logs.length}` : null);
  });
  const kinds = all.some((places) => places.length > 1) ? ", each by its worst kind of values" : "";
  return h("tr", {}, h("th", { scope: "row" }, `geometric mean of ${counted(all.length)}${kinds}`), cells);
}

// Whether it is what others are compared with at a shape.
function isBaseline(state, place, name) {
  const row = caseAt(state, place, name);
  return row !== undefined && row === caseAt(state, place, state.baseline);
}

// Mark the selected cell, which alone is a stop of the tab key, and bring it into view.
function select(explorer, part) {
  const { state } = explorer,
    at = `${state.place}/${state.candidate}`,
    grid = part.querySelector("table.matrix");
  if (!grid) return;
  for (const cell of grid.querySelectorAll('[aria-selected="true"], [tabindex="0"]'))
    filled(cell, { "aria-selected": "false", tabindex: -1 }, []);
  const cell = grid.querySelector(`[data-at="${CSS.escape(at)}"]`);
  if (cell) filled(cell, { "aria-selected": "true" }, []);
  (cell ?? grid.querySelector("td"))?.setAttribute("tabindex", 0);
  if (explorer.revealed !== at) reveal(grid.closest(".scroll"), cell);
  explorer.revealed = at;
}

// Scroll a cell of a table into view, and nothing but the table; row and column titles stay where they are.
function reveal(scroll, cell) {
  if (!scroll || !cell) return;
  const { tHead, tFoot } = cell.closest("table"),
    head = tHead.offsetHeight,
    bottom = cell.offsetTop + cell.offsetHeight + (tFoot?.offsetHeight ?? 0),
    side = cell.parentElement.firstElementChild.offsetWidth;
  const [top, left] = [cell.offsetTop, cell.offsetLeft];
  if (top < scroll.scrollTop + head) scroll.scrollTop = top - head;
  if (bottom > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = bottom - scroll.clientHeight;
  if (left < scroll.scrollLeft + side) scroll.scrollLeft = left - side;
  if (left + cell.offsetWidth > scroll.scrollLeft + scroll.clientWidth)
    scroll.scrollLeft = left + cell.offsetWidth - scroll.clientWidth;
}

// Why there may be no verdict at all.
function compared(state) {
  const run = state.shown;
  if (!(run.cases.timing ?? []).length) return " Nothing has a latency in this run: the reasons are in the cells.";
  const from = state.claim === "lost" ? ` Ours loses where it is slower by more than ${100 * state.margin} %.` : "";
  if (!run.verdicts[state.baseline]) return ` No verdicts were computed against \`${state.baseline}\`.${from}`;
  return run.verdicts[state.baseline].case?.length ? "" : ` This run holds no comparison with \`${state.baseline}\`.`;
}

const broken = (name) => name.split(/(?<=\.)/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));

// What a cell of the matrix prints.
function numberIn({ shown: { cases }, metric, by }, row, verdict, isBase) {
  if (row === undefined) return "";
  if (metric !== "speedup") return cases[`${metric} text`][row];
  if (!verdict) return isBase ? `base ${cases["latency text"][row]}` : "";
  const { short, replicates } = verdict;
  return by === "pooled" ? short : `${replicates.filter((ratio) => ratio > 1).length}/${replicates.length}`;
}

function matrixCell(explorer, place, candidate) {
  const { state, data } = explorer,
    run = state.shown,
    row = caseAt(state, place, candidate),
    verdict = verdictAt(state, place, candidate);
  const kind = verdict?.kind ?? (row === undefined ? "no latency" : undefined);
  const isBase = isBaseline(state, place, candidate);
  const hidden = state.claim === "claimable" && kind !== "faster, claimable";
  const number = numberIn(state, row, verdict, isBase);
  const words = `${candidate}, ${run.shapes[place].label}: ${kind ?? (isBase ? "the baseline" : "not judged")}${verdict ? `, speedup ${verdict.cells[0]}` : row === undefined ? `, ${absence(run, place, candidate)}` : ""}`;
  return h(
    "td",
    {
      role: "gridcell",
      tabindex: -1,
      "aria-selected": "false",
      "aria-label": words,
      "data-at": `${place}/${candidate}`,
      class: hidden ? "quiet" : undefined,
      "data-kind": hidden ? undefined : kind,
      onclick: () => explorer.select({ shape: run.shapes[place].name, candidate }),
      onpointerenter: (event) => (event.target.title = words),
    },
    hidden ? "·" : `${kind ? data.verdicts[kind].sign : ""} ${number}`.trim(),
  );
}

// Arrow keys, Home and End within the matrix; Enter and the space bar select.
function move(explorer, event) {
  const cell = event.target.closest("td");
  if (!cell) return;
  const row = cell.parentElement,
    column = [...row.children].indexOf(cell);
  const there = {
    ArrowRight: cell.nextElementSibling,
    ArrowLeft: cell.previousElementSibling,
    ArrowDown: row.nextElementSibling?.children[column],
    ArrowUp: row.previousElementSibling?.children[column],
    Home: row.querySelector("td"),
    End: row.lastElementChild,
  };
  if (event.key === "Enter" || event.key === " ") cell.click();
  else if (event.key in there) {
    const next = there[event.key];
    if (next?.tagName === "TD") {
      for (const one of cell.closest("table").querySelectorAll('td[tabindex="0"]')) one.setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus({ preventScroll: true });
      reveal(next.closest(".scroll"), next);
    }
  } else return;
  event.preventDefault();
}
