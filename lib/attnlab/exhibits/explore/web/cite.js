// Link, commands and table to cite.

function makeCite(explorer, part) {
  const { state } = explorer,
    run = state.shown,
    shape = run.shapes[state.place],
    quoted = JSON.stringify;
  const link =
    explorer.model.address?.() ?? `reports/${run.name}/explore.html${hashOf(explorer.model.get("state") ?? {})}`;
  const python = [
    `from attnlab import Shape, select_run`,
    `shape = Shape(${[shape.batch, shape.heads, shape.seq_len, shape.head_dim].join(", ")}, causal=${shape.causal ? "True" : "False"}, dtype=${quoted(shape.dtype)}${extra(shape)})`,
    `results = select_run.results(${quoted(run.name)}, device="none")`,
    `results.compare(${quoted(state.candidate)}, shape, results.timings[${state.timing}])`,
  ].join("\n");
  const commands = `make report RUN=${run.name}`;
  part.replaceChildren(
    h("h2", {}, "Cite"),
    copied("Link to this view", link),
    copied("Render the run again, from its samples", commands),
    state.baseline === run.baseline ? copied("The verdict of the selected cell in Python", python) : "",
    h(
      "p",
      {},
      h("button", { type: "button", onclick: () => download(explorer) }, "Download what the matrix shows as CSV"),
    ),
  );
}

const extra = (shape) =>
  [
    shape.kv_heads === shape.heads ? "" : `, kv_heads=${shape.kv_heads}`,
    shape.kv_len === shape.seq_len ? "" : `, kv_len=${shape.kv_len}`,
    shape.lengths === "equal" ? "" : `, lengths="${shape.lengths}"`,
    shape.direction === "forward" ? "" : `, direction="${shape.direction}"`,
  ].join("");

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
  return h(
    "div",
    { class: "copied" },
    h(
      "p",
      {},
      `${label}: `,
      h("button", { type: "button", onclick: copy, "aria-label": `Copy: ${label}` }, "copy"),
      " ",
      said,
    ),
    area,
  );
}

// The rows of the matrix, as text.
function csv(state) {
  const run = state.shown,
    { clock, cache } = run.timings[state.timing],
    axes = ["batch", "heads", "seq_len", "head_dim", "causal", "dtype", "kv_heads", "kv_len", "lengths", "direction"];
  const quote = (value) =>
    /[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? "");
  const rows = [
    [
      "run",
      "implementation",
      ...axes,
      "clock",
      "cache",
      "samples",
      "median_us",
      "low_us",
      "high_us",
      "baseline",
      "verdict",
      "speedup",
      "speedup_low",
      "speedup_high",
    ],
  ];
  for (const place of state.visible) {
    for (const name of [state.baseline, ...state.candidates]) {
      const row = caseAt(state, place, name),
        verdict = verdictAt(state, place, name),
        { cases } = run;
      if (
        row === undefined ||
        (state.claim === "claimable" && verdict?.kind !== "faster, claimable" && name !== state.baseline)
      )
        continue;
      rows.push([
        run.name,
        name,
        ...axes.map((axis) => run.shapes[place][axis]),
        clock,
        cache,
        cases.samples[row],
        cases.latency[row],
        cases.low_us[row],
        cases.high_us[row],
        state.baseline,
        verdict?.kind,
        verdict?.speedup,
        verdict?.low,
        verdict?.high,
      ]);
    }
  }
  return rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";
}

function download(explorer) {
  const address = URL.createObjectURL(new Blob([csv(explorer.state)], { type: "text/csv" }));
  h("a", { href: address, download: `${explorer.state.run}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
