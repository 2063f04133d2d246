// Elements and numbers as text. Every text goes in as a text node, so a name cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return a new HTML element; `options` are attributes, `on...` listeners; children are elements or texts. */
function el(name, options = {}, ...children) {
  return filled(document.createElement(name), options, children);
}

/** The same for SVG. */
function svg(name, options = {}, ...children) {
  return filled(document.createElementNS(SVG, name), options, children);
}

function filled(node, options, children) {
  for (const [key, value] of Object.entries(options)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  return withChildren(node, children.flat());
}

/** Add children to a node, one by one: as the arguments of one call, 100,000 of them are more than a stack holds. */
function withChildren(node, children) {
  for (const child of children) {
    if (child !== null && child !== undefined && child !== "") node.append(child);
  }
  return node;
}

/** Put children in the place of those that a node has. */
function replaceChildren(node, ...children) {
  node.replaceChildren();
  return withChildren(node, children.flat());
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const greatest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/**
 * How many cells and points one redrawing of a part of the page may still draw. A few thousand rows of tables can stand
 * for millions of cells, as where each row has a layer or a feature of its own; drawing these would not come to an end.
 */
const MOST_MARKS = 200000;
const MARKS_OF_A_CHART = 20; // its axes and its legend
const marks = { left: MOST_MARKS };
const countMarksAnew = () => { marks.left = MOST_MARKS; };

/** Return what stands in the place of a drawing of so many marks if these are too many, or null, and count them. */
function tooMany(number, what) {
  if (number <= marks.left) {
    marks.left -= number;
    return null;
  }
  return el("p", { class: "dim" }, `Not drawn: ${what} has ${number} cells or points, and this part of the page draws ${MOST_MARKS} at most. The tables of the results have all numbers.`);
}

const byId = (name) => document.getElementById(name);

/** A number as a panel shows it: four significant digits. */
function short(value) {
  if (value === null || value === undefined) return "not computed";
  if (typeof value !== "number") return String(value);
  return withMinus(Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4))));
}

/** A number with a true minus sign; a table keeps the hyphen, so that its numbers can be copied into a program. */
const withMinus = (text) => text.replaceAll("-", "−");

/** A number as a click shows it: all digits that the page holds. */
function full(value) {
  return value === null || value === undefined ? "not computed" : String(value);
}

function interval(low, high, write = short) {
  if (low === undefined) return "";
  return low === null || high === null ? "[not computed]" : `[${write(low)}, ${write(high)}]`;
}

const plain = (name) => name.replaceAll("_", " ");
const layerName = (layer) => (layer === -1 ? "embed" : String(layer));
const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** What is read when its short name is opened; nothing where there is nothing. */
const folded = (name, ...inside) => (inside.flat().some(Boolean) ? el("details", { class: "settings" }, el("summary", {}, name), ...inside) : null);

const warningsOf = (warnings) => el("ul", { class: "warnings" }, warnings.map((each) => el("li", {}, each)));

/** A command line with a button that copies it. */
function commandLine(command) {
  if (!command) return el("p", { class: "dim" }, "No command line is known for this result.");
  const button = el("button", { type: "button", class: "copy", onclick: copy }, "Copy");
  function copy() {
    const done = () => { button.textContent = "Copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(command).then(done, select);
    else select();
  }
  function select() { getSelection().selectAllChildren(code); }
  const code = el("code", { class: "command" }, command);
  return el("div", {}, code, button);
}

/** A table of texts; a column whose cells are numbers is set to the right. */
function tableOf(caption, columns, rows) {
  const numeric = columns.map((_, i) => rows.some((row) => typeof row[i] === "number"));
  const cell = (value, i) => el("td", { class: numeric[i] ? "number" : "" }, value instanceof Node ? value : full(value));
  return el("div", { class: "scroll" }, el("table", {},
    caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, columns.map((name, i) => el("th", { scope: "col", class: numeric[i] ? "number" : "" }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}
