// The controls, a select for each setting.

const CLOCKS = {
  device: "device: a replayed CUDA graph, with what lies between its kernels",
  eager: "eager: what a PyTorch program sees call by call",
  cupti: "cupti: each kernel from its start to its end, by CUPTI",
};

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
  const form = h(
    "form",
    { class: "controls", "aria-label": "What is shown", onsubmit: (event) => event.preventDefault() },
    select("run", "run A", (run) => ({
      ...unset([...OF_RUN, "clock", "cache"]),
      ...keptChoices(explorer, run),
      run,
      shape: keptShape(explorer, run),
    })),
    select("against", "run B"),
    select("baseline", "baseline", (baseline) => ({ baseline, ...keptCandidates(explorer, baseline) })),
    select("clock", "clock", (clock) => ({ clock, cache: keptCache(explorer, clock) })),
    select("cache", "cache"),
    Object.keys(FILTERS).map((name) =>
      select(name, name === "dim" ? "D" : name, (value) => ({ [name]: value, shape: alike(explorer.state, name, value) })),
    ),
    select("axis", "sweep axis"),
    select("metric", "metric"),
    select("by", "samples"),
    select("claim", "verdicts", (claim) => ({ claim, shape: undefined, candidate: undefined })),
    h("details", { class: "control candidates" }, summary, chosen),
    h("div", { class: "control" }, button("reset", () => explorer.choose(unset(KNOWN)))),
  );
  const show = (state) => {
    const run = state.shown;
    const filters = Object.entries(FILTERS).map(([name, of]) => [name, ["all", ...distinct(run.shapes.map(of))]]);
    const runs = data.runs.map((one) => [one.name, titled(one, run)]);
    const judged = judgedOurs({ shown: run }),
      ours = judged.length === 1 ? ` (${judged[0]})` : "";
    const options = {
      run: runs,
      against: againstOf(data, run).map((name) => runs.find(([one]) => one === name) ?? [name, name]),
      baseline: baselinesOf(run).map((name) => [name, run.verdicts[name] ? name : `${name} (medians alone)`]),
      clock: distinct(run.timings.map((timing) => timing.clock)).map((clock) => [clock, CLOCKS[clock] ?? clock]),
      cache: run.timings.filter((timing) => timing.clock === state.clock).map(({ cache }) => [cache, `${cache} L2`]),
      ...Object.fromEntries(filters.map(([name, values]) => [name, values.map((value) => [value, value])])),
      axis: run.axes.map((axis) => [axis, AXES[axis]]),
      metric: Object.entries(data.metrics).map(([metric, { axis }]) => [metric, axis]),
      by: Object.entries({ pooled: "pooled", replicate: "by replicate" }),
      claim: Object.entries({ all: "all", claimable: "claimable only", lost: `only where ours loses${ours}` }),
    };
    for (const [name, select] of Object.entries(selects)) {
      const key = JSON.stringify(options[name]);
      if (select.dataset.options !== key) {
        select.replaceChildren(...options[name].map(([value, words]) => h("option", { value }, words)));
        select.dataset.options = key;
      }
      select.value = state[name];
    }
    const there = run.implementations.filter((name) => name !== state.baseline);
    summary.replaceChildren(`candidates (${state.candidates.length} of ${there.length})`);
    if (chosen.dataset.names !== JSON.stringify(there)) {
      chosen.dataset.names = JSON.stringify(there);
      const choose = (fits) => {
        const candidates = there.filter(fits);
        const isAll = candidates.length === there.length;
        explorer.choose({ candidates: isAll ? undefined : candidates, candidate: undefined });
      };
      const isChecked = (_, place) => chosen.querySelectorAll("input")[place].checked;
      chosen.replaceChildren(
        button("all", () => choose(() => true)),
        button("none", () => choose(() => false)),
        button("ours", () => choose((name) => name.startsWith(OURS))),
        button("peers", () => choose((name) => run.peers.includes(name))),
        ...there.map((value) => {
          const box = h("input", { type: "checkbox", value, onchange: () => choose(isChecked) });
          return h("label", {}, box, swatch(explorer, value), h("span", {}, value));
        }),
      );
    }
    for (const box of chosen.querySelectorAll("input")) box.checked = state.candidates.includes(box.value);
  };
  return { form, show };
}

const swatch = (explorer, name) => h("span", { class: "swatch", style: `background: ${explorer.colour(name)}` });

// The shape that differs from the selected one by a filter alone; undefined where there is none.
function alike({ shown, place }, filter, value) {
  const fits = (shape) => value === "all" || FILTERS[filter](shape) === value;
  const here = shown.shapes[place];
  if (!here || fits(here)) return here?.name;
  const near = Object.keys(here).flatMap((axis) => alongside(shown, here, axis));
  return near.map((one) => shown.shapes[one]).find(fits)?.name;
}

function keptShape(explorer, name) {
  const run = explorer.data.runs.find((one) => one.name === name);
  return run.shapeAt.has(explorer.state.shape) ? explorer.state.shape : undefined;
}

// Of what is chosen, that which another run has too.
function keptChoices(explorer, run) {
  const raw = explorer.model.get("state"),
    names = ["baseline", "candidate", "clock", "cache", "claim", "axis", ...Object.keys(FILTERS)].filter((name) => raw[name]);
  const there = resolve(explorer.data, { ...Object.fromEntries(names.map((name) => [name, raw[name]])), run });
  return Object.fromEntries(names.filter((name) => there[name] === raw[name]).map((name) => [name, raw[name]]));
}

// Of the candidates, all but the one that becomes the baseline.
function keptCandidates(explorer, baseline) {
  const { candidates, candidate, order } = explorer.model.get("state") ?? {},
    others = candidates?.filter((name) => name !== baseline);
  return {
    candidates: others?.length ? others : undefined,
    candidate: candidate === baseline ? undefined : candidate,
    order: order?.startsWith(`${baseline} `) ? undefined : order,
  };
}

function keptCache(explorer, clock) {
  const { shown, cache } = explorer.state;
  return shown.timings.some((timing) => timing.clock === clock && timing.cache === cache)
    ? explorer.model.get("state").cache
    : undefined;
}
