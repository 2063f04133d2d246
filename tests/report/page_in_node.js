// Runs the scripts of a page without a browser: node page_in_node.js PAGE prints what became of it, as JSON.
//
// Nodes only remember their children and attributes, which is enough to see whether a page comes to an end, how many
// nodes it makes, and which texts stand in it.

const fs = require("fs");

const page = fs.readFileSync(process.argv[2], "utf8");
const scripts = [...page.matchAll(/<script>([\s\S]*?)<\/script>/g)].map((found) => found[1]);
const packed = /id="data">([\s\S]*?)<\/script>/.exec(page)[1];
let made = 0;

class Element {
  constructor(name) {
    made += 1;
    Object.assign(this, { tagName: name.toUpperCase(), children: [], attributes: {}, listeners: {}, dataset: {}, style: {}, value: "", hash: "#results", hidden: false });
    this.classList = { toggle() {}, add() {}, remove() {} };
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  querySelectorAll() { return []; }
  focus() {}
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((child) => (child instanceof Element ? child.textContent : String(child))).join(" "); }
  get open() { return this.isOpen; }
  set open(value) { this.isOpen = value; this.listeners.toggle?.(); }
}

const known = new Map();
function byId(name) {
  if (!known.has(name)) known.set(name, new Element("div"));
  return known.get(name);
}
byId("data").textContent = packed;
Object.assign(globalThis, {
  Node: Element,
  location: { hash: "" },
  history: { replaceState() {} },
  addEventListener() {},
  localStorage: { getItem: () => null, setItem() {} },
  document: {
    createElement: (name) => new Element(name),
    createElementNS: (_, name) => new Element(name),
    getElementById: byId,
    documentElement: new Element("html"),
    querySelectorAll: () => [],
    addEventListener() {},
  },
});

process.on("unhandledRejection", () => {}); // its message is on the page
(0, eval)(scripts.at(-1));
const waiting = setInterval(() => {
  const counts = byId("counts").textContent;
  if (!counts || (!document.documentElement.dataset.ready && !counts.includes("cannot be read"))) return;
  clearInterval(waiting);
  const texts = Object.fromEntries(["claims", "pair", "profiles", "results"].map((name) => [name, byId(name).textContent]));
  console.log(JSON.stringify({ counts, made, ...texts }));
}, 10);
