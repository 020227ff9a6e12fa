// Elements of HTML and SVG, and the words in them.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

// The Markdown of a sentence: `code`, **bold** and *emphasis*.
function rich(text) {
  const parts = text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*]+\*)/);
  return parts.map((part, place) => {
    if (place % 2 === 0) return part;
    if (part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    return part.startsWith("**") ? h("b", {}, part.slice(2, -2)) : h("i", {}, part.slice(1, -1));
  });
}

const listed = (names) => names.map((name) => `\`${name}\``).join(", ");

// A paragraph of such sentences.
const said = (text, attributes = {}) => h("p", attributes, ...rich(text));
const notice = (...words) => h("p", { class: "notice" }, ...words);
const button = (words, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, words);

// A term, with what it means where that is told.
const defined = ({ definitions }, term) =>
  definitions[term] ? h("abbr", { title: definitions[term] }, term) : h("span", {}, term);

function table(titles, rows, caption) {
  const named = (cell, place) => h("td", { "data-title": titles[place].textContent ?? titles[place] }, cell);
  const head = titles.map((title) => h("th", { scope: "col" }, title));
  const body = rows.map((row) => h("tr", {}, row.map(named)));
  const whole = h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, whole);
}
