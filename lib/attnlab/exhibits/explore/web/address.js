// What is chosen, as the part of an address after its #.

// What is chosen as the part of an address after its #, and back.
function hashOf(state) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (Array.isArray(value)) (value.length ? value : [""]).forEach((one) => parts.append(name, one));
    else if (value !== undefined) parts.append(name, value);
  }
  return parts.size ? `#${parts}` : "";
}

function stateOf(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, "")),
    state = {};
  for (const name of parts.keys())
    state[name] = name === "candidates" ? parts.getAll(name).filter(Boolean) : parts.get(name);
  return state;
}
