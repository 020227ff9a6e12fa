// Shapes found in words, and the implementation with the smallest median there.

const MOST_FOUND = 12;
const MOST_ECHOED = 80;

function makeFind(explorer, part) {
  const { state } = explorer,
    id = `${explorer.prefix}-find`;
  if (!part.firstChild) {
    const placeholder = "4096 causal, 32 8 512 64, gqa";
    const off = { autocomplete: "off", spellcheck: "false", "data-at": "find" };
    const input = h("input", { id, type: "search", placeholder, ...off });
    const onsubmit = (event) => {
      event.preventDefault();
      explorer.choose({ find: input.value.trim() || undefined });
    };
    const find = [h("label", { for: id }, "Which kernel for"), input, h("button", { type: "submit" }, "Find")];
    const form = h("form", { class: "find", role: "search", onsubmit }, find);
    part.append(h("h2", {}, "Which kernel?"), form, h("div", { class: "found", "aria-live": "polite" }));
  }
  part.querySelector("input").value = state.find;
  const shown = state.find ? found(explorer) : [said(state.place === undefined ? NO_CELL : answer(state))];
  part.querySelector(".found").replaceChildren(...shown);
}

// Of the implementations in 16 bits, or of those in FP8, the one with the smallest median on its worst kind of values;
// undefined for none. Where one kind alone was timed, those whose time goes by the values elsewhere are passed over. What
// lacks a latency on some kind comes last, what is `passed` over isn't looked at. Others whose median lies in its interval
// are its `near`.
function safest(run, timing, place, { fp8 = false, values, passed = [] }) {
  const places = values ? [place] : run.kindsAt[place],
    median = ({ row }) => run.cases.latency[row];
  const timed = run.implementations
    .filter((name) => run.fp8.includes(name) === fp8 && !passed.includes(name))
    .map((name) => {
      const rows = places.map((one) => caseAt({ shown: run, timing }, one, name)).filter((row) => row !== undefined);
      const row = rows.sort((one, other) => run.cases.latency[other] - run.cases.latency[one])[0];
      const isUnsteady = places.length === 1 && !values && name in run.unsteady;
      return { name, row, lacks: places.length - rows.length, isUnsteady };
    })
    .filter(({ row }) => row !== undefined)
    .sort((one, other) => one.isUnsteady - other.isUnsteady || one.lacks - other.lacks || median(one) - median(other));
  const [first] = timed,
    over = timed.find((one) => one.isUnsteady && median(one) < median(first));
  const near = timed
    .filter((one) => one !== first && one.lacks === first.lacks && one.isUnsteady === first.isUnsteady)
    .filter((one) => median(one) <= run.cases.high_us[first.row])
    .map(({ name }) => name);
  const kind = first && run.shapes[run.cases.shape[first.row]].values;
  const alone = values ? "" : `, on ${kind} values alone`,
    on = places.length > 1 ? `, on ${kind}, its worst of ${places.length} kinds` : alone;
  return first && { ...first, on, over, near };
}

// Of the run that is shown, what is neither a candidate that is chosen nor the baseline.
const unchosen = ({ shown, candidates, baseline }) =>
  shown.implementations.filter((name) => !candidates.includes(name) && name !== baseline);

// Why an implementation that is faster on the only kind of values is passed over.
const passedOver = (run, { over }) =>
  over ? ` Passed over, as one kind of values was timed here: \`${over.name}\` takes ${run.unsteady[over.name]}.` : "";

// A sentence on the selected shape.
function answer(state) {
  const run = state.shown,
    { label, values } = run.shapes[state.place],
    { words } = run.timings[state.timing];
  const isChosen = state.values !== "all" || values !== PLAIN.values,
    passed = unchosen(state),
    first = safest(run, state.timing, state.place, { values: isChosen, passed });
  if (!first) return `Nothing has a latency at ${label}, ${words}.`;
  const { name, row, on, near } = first,
    verdict = verdictAt(state, run.cases.shape[row], name);
  const compared = verdict
    ? ` Compared with \`${baselineAt(state, run.cases.shape[row])}\`: ${judged(verdict)}.`
    : row === caseAt(state, run.cases.shape[row], state.baseline)
      ? " It is the baseline."
      : "";
  const inBits = (run.fp8.length ? " in 16 bits" : "") + (passed.length ? " of what is chosen" : ""),
    within = near.length ? ` In that interval ${near.length > 1 ? "are those" : "is that"} of ${listed(near)} too.` : "";
  return `At ${label}, ${words}: \`${name}\` has the smallest median${inBits}, ${run.cases.interval[row]} µs${on}.${within}${compared}${passedOver(run, first)}`;
}

const deviceWords = (run) => run.device.toLowerCase().split(/\s+/);

function found(explorer) {
  const { state, data } = explorer,
    shapes = data.runs.flatMap((run) => run.shapes),
    devices = [...DEVICES, ...data.runs.flatMap(deviceWords)],
    { wanted, unknown } = requested(state.find, state.shown.shapes[state.shown.target], shapes, devices);
  const echoed = unknown.join(", "),
    cut = echoed.length > MOST_ECHOED ? `${echoed.slice(0, MOST_ECHOED)}…` : echoed;
  const words = `Not understood: ${cut}. A request names B, H, S, D, keys, queries or KV with a number above 0, S alone or B, H, S and perhaps D by numbers only, causal or full, fp16, bf16, fp32 or fp8, gqa, mqa, decode, varlen or training, a kind of values, a device, or the target; or it is the label of a shape.`;
  const refused = unknown.length ? [notice(words)] : [];
  if (!Object.keys(wanted).length) return refused;
  const ofDevice = (run) => (wanted.devices ?? []).every((word) => deviceWords(run).includes(word));
  const here = data.runs.filter(ofDevice);
  if (!here.length) {
    const device = wanted.devices.join(" ").toUpperCase();
    const words = `No run of an ${device} is in this page.${leftOut(data.left_out.filter(ofDevice))}`;
    return [...refused, notice(...rich(words))];
  }
  const passed = unchosen(state),
    rows = nearest(state, here, { ...wanted, passed });
  if (!rows.length)
    return [...refused, notice(`No run here has a latency${wanted.fp8 ? " in FP8" : ""} under this clock and cache.`)];
  const among = passed.length ? " Only the candidates that are chosen count, and the baseline." : "",
    ranked = `Ranked by each implementation's worst kind of values at a shape, ${state.shown.timings[state.timing].words}.${among}`,
    asked = unknown.length ? "Measured as far as that was understood" : "Measured as asked",
    exact = rows.filter(({ differs }) => !differs.length),
    nearly = rows.slice(exact.length, Math.max(exact.length, MOST_FOUND)),
    over = rows.slice(0, MOST_FOUND).find(({ first }) => first.over);
  const headed = (title, some) => {
    const [first, more] = [some.slice(0, MOST_FOUND), some.slice(MOST_FOUND)];
    if (!first.length) return [];
    const ontoggle = () => rest.childElementCount > 1 || rest.append(foundTable(explorer, more, unknown)),
      rest = h("details", { ontoggle }, h("summary", {}, `${more.length} more`));
    return [h("h3", {}, title), foundTable(explorer, first, unknown), ...(more.length ? [rest] : [])];
  };
  return [
    ...refused,
    said(ranked + inFp8(data, wanted)),
    ...headed(asked, exact),
    ...headed(exact.length ? "The nearest beside" : "None was measured exactly so; the nearest", nearly),
    ...(over ? [said(passedOver(over.run, over.first).trim())] : []),
  ];
}

// The shapes of some runs at which something has a latency, the nearest to what is wanted first; of those as far away
// first those of the run that is shown, then of its device, and of these the newest.
function nearest(state, runs, wanted) {
  const near = runs.flatMap((run) => {
    const places = [...run.shapes.keys()].filter((place) => wanted.values || run.kindsAt[place][0] === place);
    const answered = places.map((place) => ({ place, first: safest(run, timingOf(run, state), place, wanted) }));
    const timed = answered.filter(({ first }) => first);
    return timed.map(({ place, first }) => ({
      run,
      shape: run.shapes[place],
      first,
      ...apart(run.shapes[place], wanted),
    }));
  });
  const elsewhere = ({ run }) => (run !== state.shown) + (run.device !== state.shown.device);
  const newer = (one, other) => other.run.created.localeCompare(one.run.created);
  return near.sort(
    (one, other) => one.distance - other.distance || elsewhere(one) - elsewhere(other) || newer(one, other),
  );
}

// What FP8 implementations are given, or that they are left out.
function inFp8({ runs }, { fp8 }) {
  if (fp8)
    return " Implementations in FP8 are given Q, K and V in e4m3: quantising them isn't timed, except where the name says so.";
  return runs.some((run) => run.fp8.length) ? " Implementations in FP8 are left out: ask for fp8." : "";
}

function foundTable(explorer, found, unknown = []) {
  const { state, data } = explorer;
  const rows = found.map(({ run, shape, first: { name, row, on, over, near }, differs }) => {
    const baseline = baselinesOf(run).includes(state.baseline) ? state.baseline : run.baseline;
    const there = { ...state, shown: run, timing: timingOf(run, state), baseline },
      place = run.cases.shape[row],
      verdict = verdictAt(there, place, name);
    const kind = isBaseline(there, place, name) ? "is the baseline" : verdict ? judged(verdict) : "not compared",
      against = baseline === state.baseline ? "" : `, against ${baseline}`;
    const kept = { ...unset(OF_RUN), baseline: baseline === run.baseline ? undefined : baseline };
    const candidate = name === baseline ? undefined : name;
    const chosen = { ...kept, run: run === data.runs[0] ? undefined : run.name, shape: shape.name, candidate };
    const at = run.changed[name]; // null for all shapes
    const changed = at === null || at?.includes(run.shapeAt.get(shape.name)) ? ", changed since" : "";
    const nothing = unknown.length ? "nothing that was understood" : "nothing: as asked";
    return [
      button(shape.label, () => explorer.select(chosen), { "data-at": `${run.name}/${shape.name}` }),
      differs.join(", ") || nothing,
      [h("code", {}, name), ...near.flatMap((one) => [", ", h("code", {}, one)]), changed, over ? ` (${over.name} passed over)` : ""],
      `${run.cases.interval[row]}${on}`,
      kind + against,
      titled(run, state.shown),
    ];
  });
  const titles = ["shape", "differs in", "smallest median", `median (µs) [${data.confidence}]`];
  titles.push(`against ${state.baseline}`, "run");
  return table(titles, rows, "shapes found");
}
