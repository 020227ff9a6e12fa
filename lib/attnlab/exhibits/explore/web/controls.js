// The controls, a select for each setting.

const CLOCKS = {
  device: "device: kernels alone, as in a replayed graph",
  eager: "eager: what a PyTorch program sees call by call",
  cupti: "cupti: kernels alone, as CUPTI says",
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
  const claim = h("input", {
    type: "checkbox",
    id: `${explorer.prefix}-claim`,
    onchange: (event) => explorer.choose({ claim: event.target.checked ? "claimable" : undefined }),
  });
  const other = { shape: undefined, candidate: undefined };
  const form = h(
    "form",
    { class: "controls", "aria-label": "What is shown", onsubmit: (event) => event.preventDefault() },
    select("run", "run A", (run) => ({
      run,
      against: undefined,
      baseline: undefined,
      clock: undefined,
      cache: undefined,
      mask: undefined,
      dtype: undefined,
      dim: undefined,
      axis: undefined,
      candidates: undefined,
      candidate: undefined,
      shape: keptShape(explorer, run),
    })),
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
    h("details", { class: "control candidates" }, summary, chosen),
  );
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
      metric: Object.entries(data.metrics).map(([metric, { axis }]) => [metric, axis]),
      by: [
        ["pooled", "pooled"],
        ["replicate", "by replicate"],
      ],
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
      chosen.replaceChildren(
        ...there.map((name) =>
          h(
            "label",
            {},
            h("input", {
              type: "checkbox",
              value: name,
              onchange: () => {
                const names = [...chosen.querySelectorAll("input")]
                  .filter((box) => box.checked)
                  .map((box) => box.value);
                explorer.choose({
                  candidates: names.length === there.length ? undefined : names,
                  candidate: undefined,
                });
              },
            }),
            swatch(explorer, name),
            h("span", {}, name),
          ),
        ),
      );
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
  return shown.timings.some((timing) => timing.clock === clock && timing.cache === cache)
    ? explorer.model.get("state").cache
    : undefined;
}
