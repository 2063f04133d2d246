// The page: search, the choice of a pair, the theme, and what was left out.

const THEMES = ["automatic", "light", "dark"];
const MOST_MAPPED = 200; // models in the table of all pairs, which has a cell for each two of them

function setTheme(name) {
  if (name === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
  byId("theme").dataset.theme = name;
  try { localStorage.setItem("thinkalike-theme", name); } catch { /* a page may be kept from remembering */ }
}

function rememberedTheme() {
  try { return THEMES.find((name) => name === localStorage.getItem("thinkalike-theme")) ?? "automatic"; } catch { return "automatic"; }
}

function start(report) {
  const pairs = pairsOf(report);
  const state = { pair: null, words: [] };
  const models = new Set(report.grids.flatMap((grid) => grid.models));
  byId("counts").textContent = [count(report.results.length, "result"), count(models.size, "model"), count(pairs.length, "pair"),
    report.claims.length ? count(report.claims.length, "claim") : ""].filter(Boolean).join(", ");
  byId("made").textContent = `Made by thinkalike, ${report.made}. Numbers have six significant digits; table.csv of a result has all. 95 % intervals.`;
  const items = listOfResults(report, show);
  const newest = [...items].sort((p, q) => report.results[q.dataset.number].date.localeCompare(report.results[p.dataset.number].date));
  replaceChildren(byId("results"), newest);
  const drawn = el("div");
  const chooser = el("select", { id: "pairs", "aria-label": "Pair of models", onchange: () => show(chooser.value) });
  const [map, reading] = [el("div", { class: "scroll" }), el("p", { class: "dim" })];
  const overview = el("details", {}, el("summary", {}, "All pairs as a table of models"), map);
  byId("pair").replaceChildren(el("h2", { id: "pair-title" }, "Two models, all measures"),
    pairs.length ? el("div", { class: "bar" }, chooser) : "",
    pairs.length > 2 ? overview : "", reading,
    pairs.length ? drawn : el("p", { class: "dim" }, "No result compares layers of two models."));

  const pairMatches = (pair) => pair.grids.some((grid) => grid.results.some((n) => matches(`${grid.models.join(" ").toLowerCase()} ${textOf(report.results[n])}`, state.words)));

  function show(key, chosen) {
    state.pair = pairs.find((pair) => pair.key === key) ?? pairs[0];
    if (!state.pair) return;
    drawPair(report, state.pair, drawn, chosen);
    reading.textContent = readingOf(state.pair);
    const held = new Set(state.pair.grids.flatMap((grid) => grid.results));
    items.forEach((item, n) => item.classList.toggle("shown", held.has(n)));
    offer();
  }

  function offer() {
    const name = (pair) => (pair.a === pair.b ? `${pair.a}, its own layers` : `${pair.a} and ${pair.b}`);
    const open = pairs.filter((pair) => pair === state.pair || pairMatches(pair));
    replaceChildren(chooser, open.map((pair) => el("option", { value: pair.key, ...(pair === state.pair ? { selected: "" } : {}) },
      `${name(pair)} (${count(pair.grids.length, "matrix").replace("matrixs", "matrices")})`)));
    map.replaceChildren(mapOf(pairs, state.pair, pairMatches, show));
  }

  function search() {
    state.words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    items.forEach((item, n) => { item.hidden = !matches(textOf(report.results[n]), state.words); found += !item.hidden; });
    byId("found").textContent = `${found} of ${count(items.length, "result")}`;
    offer();
    drawProfiles(report, byId("profiles"), state.words);
    drawClaims(report, byId("claims"), state.words);
  }

  byId("search").addEventListener("input", search);
  addEventListener("hashchange", fromAddress);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(event.target.tagName)) { event.preventDefault(); byId("search").focus(); }
  });
  function fromAddress() {
    const asked = askedFor();
    const pair = asked && pairs.find((each) => each.key === keyOf(asked.slice(0, 2)));
    if (pair) show(pair.key, pair.a === asked[0] ? asked.slice(2) : asked.slice(2).reverse());
    return pair;
  }
  if (!fromAddress()) {
    const latest = Number(newest[0]?.dataset.number);
    show((pairs.find((pair) => pair.grids.some((grid) => grid.results.includes(latest))) ?? pairs[0])?.key);
  }
  if (newest.length) newest[0].open = true;
  search();
  leftOut(report);
  for (const link of document.querySelectorAll("nav a")) link.hidden = byId(link.hash.slice(1)).hidden;
}

/** The pair and layers in the address of the page, or null. */
function askedFor() {
  if (!location.hash.startsWith("#pair=")) return null;
  try { return JSON.parse(decodeURIComponent(location.hash.slice(6))); } catch { return null; }
}

/** Which pairs there are, as a table of models by models; a button for each, with how many matrices it has. */
function mapOf(pairs, shown, pairMatches, show) {
  const models = [...new Set(pairs.flatMap((pair) => [pair.a, pair.b]))].sort();
  if (models.length > MOST_MAPPED) return el("p", { class: "dim" }, `These are ${models.length} models, and the table has room for ${MOST_MAPPED}.`);
  const byKey = new Map(pairs.map((pair) => [pair.key, pair]));
  const button = (a, b) => {
    const pair = byKey.get(keyOf([a, b]));
    return pair ? el("button", { type: "button", "aria-pressed": pair === shown, disabled: pairMatches(pair) ? null : "",
      "aria-label": `${a} and ${b}, ${pair.grids.length}`, onclick: () => show(pair.key) }, String(pair.grids.length)) : "";
  };
  return el("table", { class: "map" }, el("caption", {}, "Matrices of each pair"),
    el("thead", {}, el("tr", {}, el("td"), models.map((model) => el("th", { scope: "col" }, el("span", {}, model))))),
    el("tbody", {}, models.map((a, i) => el("tr", {}, el("th", { scope: "row" }, a),
      models.map((b, j) => el("td", {}, j <= i ? button(a, b) : ""))))));
}

function leftOut(report) {
  if (!report.left_out.length && !report.unfinished.length) return;
  byId("left-out").hidden = false;
  byId("left-out").replaceChildren(el("h2", { id: "left-out-title" }, "Left out"),
    el("ul", {}, report.left_out.map((sentence) => el("li", {}, sentence))),
    report.unfinished.length ? el("p", {}, `Unfinished, running or interrupted: ${report.unfinished.join(", ")}`) : "");
}

setTheme(rememberedTheme());
byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(byId("theme").dataset.theme) + 1) % THEMES.length]));
unpacked().then((report) => { start(report); document.documentElement.dataset.ready = "yes"; })
  .catch((error) => { byId("counts").textContent = `This page cannot be read: ${error.message}`; throw error; });
