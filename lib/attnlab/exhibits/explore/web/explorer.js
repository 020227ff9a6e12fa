// The explorer draws what attnlab computed beforehand and infers nothing. anywidget calls render({ model, el }), and so
// does host.js on a page; model.get("payload") is what data.py packed, model.get("state") what is chosen.

async function render({ model, el }) {
  // JupyterLab would take the arrow keys for its cells.
  const root = h(
    "div",
    { class: "attnlab-explorer", "data-lm-suppress-shortcuts": "true" },
    h("p", { role: "status" }, "reading the run …"),
  );
  el.replaceChildren(root);
  let data;
  try {
    data = await unpack(model.get("payload"));
  } catch (error) {
    const words = `This browser can't read the explorer's data (${error.message}): use one of 2023 or later.`;
    root.replaceChildren(h("p", { role: "alert" }, words));
    return () => {};
  }
  const explorer = new Explorer(data, model, root);
  const show = () => explorer.show();
  model.on("change:state", show);
  const resized = new ResizeObserver(() => explorer.resize());
  resized.observe(root);
  explorer.show();
  return () => {
    model.off("change:state", show);
    resized.disconnect();
  };
}

// Views of one page; each has ids of its own.
let views = 0;

class Explorer {
  constructor(data, model, root) {
    Object.assign(this, { data, model, root, drawn: {}, width: 0, prefix: views++ ? `attnlab${views}` : "attnlab" });
    this.parts = Object.fromEntries(Object.keys(SECTIONS).map((name) => [name, h("section", { "data-part": name })]));
    this.notice = h("p", { class: "notice", role: "status" });
    this.tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.heading = h("p", { class: "meta" });
    const rules = Object.entries(data.verdicts).map(
      ([kind, { light, dark }]) =>
        `.attnlab-explorer [data-kind="${kind}"] { background: light-dark(${light[0]}, ${dark[0]}); color: light-dark(${light[1]}, ${dark[1]}); }`,
    );
    this.controls = controls(this);
    const left = h("div", {}, this.parts.matrix, this.parts.lines);
    const columns = h("div", { class: "columns" }, left, h("div", {}, this.parts.cell));
    root.replaceChildren(
      h("style", {}, rules.join("\n")),
      h("header", {}, h("h1", {}, "Explore a run"), this.heading),
      this.notice,
      this.controls.form,
      this.parts.find,
      columns,
      this.parts.flips,
      this.parts.beside,
      this.parts.cite,
      this.tip,
    );
  }

  // Choose settings; those that are as by default are left out of the address.
  choose(changes) {
    const raw = { ...this.model.get("state"), ...changes };
    for (const [name, value] of Object.entries(raw)) {
      if (value === undefined || !KNOWN.includes(name)) delete raw[name];
    }
    for (const name of DEFAULTED.filter((one) => one in changes && one in raw)) {
      const { [name]: value, ...rest } = raw;
      if (resolve(this.data, rest)[name] === value) delete raw[name];
    }
    this.model.set("state", raw);
    this.model.save_changes();
  }

  // Choose a cell, and bring what is said of it into view.
  select(changes) {
    this.choose(changes);
    const { top } = this.parts.cell.getBoundingClientRect();
    if (top < 0 || top > innerHeight / 2) this.parts.cell.scrollIntoView();
  }

  show() {
    const state = (this.state = resolve(this.data, this.model.get("state") ?? {}));
    const run = state.shown;
    const of = `run \`${run.name}\` · ${run.device} · ${run.created} · attnlab ${this.data.attnlab}`;
    this.heading.replaceChildren(...rich(`${of}${run.complete ? "" : " · not complete"}${run.since}`));
    this.notice.textContent = state.notices.length ? `From the address: ${state.notices.join("; ")}.` : "";
    this.controls.show(state);
    this.draw();
    document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn ?? 0) + 1);
  }

  // Draw the sections that depend on what changed.
  draw() {
    const width = Math.round(this.root.clientWidth);
    for (const [name, { needs, make }] of Object.entries(SECTIONS)) {
      const key = JSON.stringify([width, this.state.run, ...needs.map((need) => this.state[need])]);
      if (this.drawn[name] === key) continue;
      this.drawn[name] = key;
      const part = this.parts[name],
        focused = part.contains(document.activeElement) ? document.activeElement.dataset.at : undefined;
      make(this, part);
      if (focused !== undefined)
        part.querySelector(`[data-at="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
    select(this, this.parts.matrix);
  }

  resize() {
    const width = Math.round(this.root.clientWidth);
    if (width === this.width) return;
    this.width = width;
    if (this.state) this.draw();
  }

  colour(name) {
    const { light, dark } = this.data.colours[name] ?? { light: "#595959", dark: "#bbbbbb" };
    return `light-dark(${light}, ${dark})`;
  }

  point(event, lines) {
    const box = this.root.getBoundingClientRect();
    this.tip.replaceChildren(...lines.map((line) => h("div", {}, line)));
    this.tip.hidden = false;
    const left = Math.min(event.clientX - box.left + 12, box.width - this.tip.offsetWidth - 4);
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${event.clientY - box.top + 14}px`;
  }
}

// What each section is drawn from; it stays where none of that changed.
const CELL = ["baseline", "timing", "by", "place", "candidate"];
const SHOWN = ["baseline", "timing", "candidates", "visible"];
const SECTIONS = {
  find: { needs: ["find", "baseline", "timing", "place", "values", "candidates"], make: makeFind },
  matrix: { needs: [...SHOWN, "metric", "by", "claim", "order"], make: makeMatrix },
  lines: { needs: [...CELL, "candidates", "axis", "metric", "claim"], make: makeLines },
  cell: { needs: CELL, make: makeCell },
  flips: { needs: ["against", ...SHOWN], make: makeFlips },
  beside: { needs: ["against", ...SHOWN], make: makeBeside },
  cite: { needs: [...CELL, ...KNOWN], make: makeCite },
};

export default { render };
