// The page's stand-in for anywidget's model: what is chosen is kept in the address, so that it can be sent and undone.
const listeners = new Set();
const model = {
  chosen: stateOf(location.hash),
  payload: Uint8Array.from(atob(document.getElementById("payload").textContent), (letter) => letter.charCodeAt(0)),
  get: (name) => (name === "payload" ? model.payload : model.chosen),
  set: (_, state) => (model.chosen = state),
  save_changes: () => {
    const hash = hashOf(model.chosen);
    if (hash !== location.hash) history.pushState(null, "", hash || location.pathname + location.search);
    model.told();
  },
  address: () => location.href,
  told: () => listeners.forEach((listener) => listener()),
  on: (_, listener) => listeners.add(listener),
  off: (_, listener) => listeners.delete(listener),
};
// Back, forward, and an address typed by hand.
addEventListener("popstate", () => {
  model.chosen = stateOf(location.hash);
  model.told();
});
render({ model, el: document.getElementById("explorer") });
