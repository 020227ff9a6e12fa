// Link, commands and table to cite.

function makeCite(explorer, part) {
  const { state } = explorer,
    run = state.shown,
    shape = run.shapes[state.place],
    drawings = shape ? Object.entries(DRAWINGS) : [];
  const link =
    explorer.model.address?.() ?? `reports/${run.name}/explore.html${hashOf(explorer.model.get("state") ?? {})}`;
  const commands = `make report RUN=${run.name}`;
  part.replaceChildren(
    h("h2", {}, "Cite"),
    copied("Link to this view", link),
    copied("Render the run again, from its samples", commands),
    state.baseline === run.baseline && shape
      ? copied("The verdict of the selected cell in Python", inPython(state, shape))
      : "",
    h(
      "p",
      {},
      button("Download what the matrix shows as CSV", () => save(csv(explorer.state), "text/csv", `${run.name}.csv`)),
      ...drawings.map(([name, where]) =>
        button(`Download the ${name} as SVG`, () =>
          save(standalone(explorer, name, where), "image/svg+xml", `${run.name}-${name}.svg`),
        ),
      ),
    ),
  );
}

function inPython({ shown, candidate, timing }, shape) {
  const quoted = JSON.stringify,
    sizes = [shape.batch, shape.heads, shape.seq_len, shape.head_dim].join(", "),
    causal = shape.causal ? "True" : "False",
    more = special(shape).map(([axis]) => `, ${axis}=${quoted(shape[axis])}`);
  return [
    `from attnlab import Shape, select_run`,
    `shape = Shape(${sizes}, causal=${causal}, dtype=${quoted(shape.dtype)}${more.join("")})`,
    `results = select_run.results(${quoted(shown.name)}, device="none")`,
    `results.compare(${quoted(candidate)}, shape, results.timings[${timing}])`,
  ].join("\n");
}

function copied(label, text) {
  const status = h("span", { role: "status", class: "note" });
  const area = h("pre", { tabindex: 0 }, text);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      status.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(area);
      status.textContent = "selected: copy it with Ctrl+C";
    }
  };
  const title = h("p", {}, `${label}: `, button("copy", copy, { "aria-label": `Copy: ${label}` }), " ", status);
  return h("div", { class: "copied" }, title, area);
}

// The rows of the matrix, as text.
function csv(state) {
  const run = state.shown,
    { clock, cache } = run.timings[state.timing],
    axes = ["batch", "heads", "seq_len", "head_dim", "causal", "dtype", "kv_heads", "kv_len", ...Object.keys(PLAIN)];
  const quote = (value) =>
    /[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? "");
  const rows = state.visible.flatMap((place) => {
    const baseline = baselineAt(state, place);
    return distinct([baseline, ...state.candidates]).map((name) => {
      const row = caseAt(state, place, name),
        { kind, speedup, low, high } = verdictAt(state, place, name) ?? {},
        { samples, latency, low_us, high_us } = run.cases;
      const isLeftOut = state.claim === "claimable" && kind !== "faster, claimable" && name !== baseline;
      if (row === undefined || isLeftOut) return undefined;
      const sizes = Object.fromEntries(axes.map((axis) => [axis, run.shapes[place][axis]]));
      const median = { samples: samples[row], median_us: latency[row], low_us: low_us[row], high_us: high_us[row] };
      const verdict = { baseline, verdict: kind, speedup, speedup_low: low, speedup_high: high };
      return { run: run.name, implementation: name, ...sizes, clock, cache, ...median, ...verdict };
    });
  });
  const there = rows.filter(Boolean);
  const lines = [Object.keys(there[0] ?? {}), ...there.map((row) => Object.values(row))];
  return lines.map((line) => line.map(quote).join(",")).join("\r\n") + "\r\n";
}

const DRAWINGS = {
  lines: '[data-part="lines"] svg',
  samples: '[data-part="cell"] svg',
  distribution: '[data-part="cell"] h3:last-of-type + svg',
};
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity", "font-size"];

// Below a drawing in a file of its own: what its lines are, and of what it is; each with its colour.
function captions({ root, state }, name) {
  const { shown, place, timing, baseline, candidate } = state;
  const legend = [...root.querySelectorAll('[data-part="cell"] .legend > span')];
  const sides = legend.slice(0, { lines: 0, samples: 2 }[name]);
  const ink = getComputedStyle(root).color;
  const pair =
    name === "lines" ? `baseline ${baseline}` : `${candidate || "nothing"} against ${baselineAt(state, place)}`;
  const words = [`run ${shown.name}, ${shown.device}, ${shown.created}`, `${shown.timings[timing].words}; ${pair}`];
  return [
    ...sides.map((side) => [`■${side.textContent}`, getComputedStyle(side.firstChild).borderTopColor]),
    ...[...words, shown.shapes[place].label].map((line) => [line, ink]),
  ];
}

// A drawing with these, and with the styles and the ground that it has on the page.
function standalone(explorer, name, where) {
  const svg = explorer.root.querySelector(where);
  if (!svg) return "";
  const copy = svg.cloneNode(true),
    copies = [...copy.querySelectorAll("*")];
  svg.querySelectorAll("*").forEach((one, place) => {
    const style = getComputedStyle(one);
    copies[place].setAttribute("style", STYLES.map((name) => `${name}: ${style.getPropertyValue(name)}`).join("; "));
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const below = captions(explorer, name).map(([words, fill], place) =>
    s("text", { x: 4, y: height + 16 + 15 * place, fill, "font-size": 11 }, words),
  );
  const whole = height + 20 + 15 * below.length,
    ground = getComputedStyle(explorer.root).backgroundColor;
  const box = { viewBox: `0 0 ${width} ${whole}`, height: whole };
  filled(copy, { xmlns: SVG, style: `background: ${ground}`, "font-family": "sans-serif", ...box }, below);
  return copy.outerHTML;
}

function save(text, type, name) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
