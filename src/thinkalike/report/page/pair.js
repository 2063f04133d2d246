// Two models: the matrices of all measures side by side, and every number of the layer pair that was chosen.

/** How to read the matrices of a pair. */
const readingOf = (pair) => `Rows are the layers of ${pair.a}, columns those of ${pair.b}. Yellow is more alike, blue less, between the ends `
  + "that stand under each matrix; a signed number is white at 0, and a blank cell was not computed. Point at a cell, or move with the arrow keys, to read it in all measures; click, or press Enter, for every number of that pair of layers.";

function drawPair(report, pair, place, chosen) {
  countMarksAnew();
  const [rows, columns] = axesOf(pair);
  const differences = differencesOf(report, pair.grids);
  for (const grid of pair.grids) grid.difference = differences.get(grid);
  const detail = el("div", { id: "detail", "aria-live": "off" });
  const cursor = cursorOver(rows, columns, (a, b) => {
    countMarksAnew();
    replaceChildren(detail, numbersOf(report, pair, a, b));
    history.replaceState(null, "", hashOf(pair, a, b));
  }, (text) => { byId("said").textContent = text; });
  const panels = pair.grids.map((grid) => panelOf(report, pair, grid, cursor));
  replaceChildren(place,
    el("div", { class: "panels" }, panels), detail, curvesOf(report, pair), profilesOf(report, pair));
  const at = chosen ?? [rows[0], columns[0]];
  const [row, column] = [Math.max(rows.indexOf(at[0]), 0), Math.max(columns.indexOf(at[1]), 0)];
  cursor.pick(row, column);
}

const hashOf = (pair, a, b) => `#pair=${encodeURIComponent(JSON.stringify([pair.a, pair.b, a, b]))}`;
const direction = (pair, grid) => (pair.a === pair.b ? pair.a : `${grid.models[0]} → ${grid.models[1]}`);

/** What a panel is: the measure, which of its numbers, where it has several, and what tells it from panels of the same measure. */
const titled = (grid, name) => (name === "value" || grid.title.endsWith(plain(name)) ? named(grid) : `${named(grid)}: ${plain(name)}`);
const named = (grid) => (grid.difference ? `${grid.title} (${grid.difference})` : grid.title);

function panelOf(report, pair, grid, cursor) {
  const drawn = el("div");
  const title = () => titled(grid, number().name);
  let shown = grid.main;
  const number = () => grid.numbers[shown];
  const picker = el("select", { "aria-label": "Which number", onchange: () => { shown = Number(picker.value); countMarksAnew(); draw(); } },
    grid.numbers.map((each, i) => el("option", { value: i, ...(i === shown ? { selected: "" } : {}) }, plain(each.name))));
  const heading = el("strong");
  function draw() {
    const old = cursor.panels.findIndex((panel) => panel.grid === grid);
    if (old >= 0) cursor.panels.splice(old, 1);
    const get = (key) => (a, b) => {
      const at = placeIn(pair, grid, a, b);
      return at === undefined ? undefined : number()[key]?.[at];
    };
    heading.textContent = title();
    replaceChildren(drawn, matrix(cursor, {
      title: title(), label: `${title()}, ${direction(pair, grid)}, by layers`, up: true,
      rowName: pair.a, columnName: pair.b, value: (a, b) => get("v")(a, b) ?? null,
      ends: (a, b) => [get("low")(a, b), get("high")(a, b)],
      told: (a, b) => `layer ${layerName(a)} with ${layerName(b)}`, colours: scaleOf(number().v, number().colours),
    }));
    cursor.panels.at(-1).grid = grid;
  }
  draw();
  return el("figure", { class: "panel" }, el("figcaption", {}, heading,
    ...toldOf(report, pair, grid), grid.numbers.length > 1 ? el("div", {}, picker) : null), drawn);
}

/** The direction of a grid, and, folded, its settings and the warnings of its results. */
function toldOf(report, pair, grid) {
  const warnings = [...new Set(grid.results.flatMap((number) => report.results[number].provenance.warnings ?? []))];
  return [el("span", { class: "settings" }, direction(pair, grid)), folded("settings", settingsOf(report, grid)),
    warnings.length ? folded(count(warnings.length, "warning"), warningsOf(warnings)) : null];
}

/** Every number of a pair of layers: those of each measure, and what is known of each layer by itself. */
function numbersOf(report, pair, a, b) {
  const cards = pair.grids.map((grid) => cardOf(report, pair, grid, a, b)).filter(Boolean);
  return [
    el("h3", {}, `Layer ${layerName(a)} of ${pair.a} and layer ${layerName(b)} of ${pair.b}`),
    cards.length ? el("div", { class: "cards flowing" }, cards) : el("p", { class: "dim" }, "No measure was computed for these two layers."),
    ...aloneOf(report, pair, a, b)];
}

function cardOf(report, pair, grid, a, b) {
  const at = placeIn(pair, grid, a, b);
  if (at === undefined) return null;
  const rows = grid.numbers.map((each) => [plain(each.name), each.v[at], interval(each.low?.[at], each.high?.[at], full)]);
  const words = grid.words.map((each) => [plain(each.name), each.v[at], ""]);
  const [main] = rows.splice(grid.main, 1);
  return el("article", { class: "card" },
    el("h4", {}, named(grid), " ", el("span", { class: "settings" }, [direction(pair, grid), grid.variant].filter(Boolean).join(" · "))),
    tableOf("", ["number", "value", "interval"], [main, ...words, ...rows]),
    el("p", { class: "dim" }, grid.results.map((number) => `${report.results[number].kind}/${report.results[number].key}`).join(", ")));
}

/** What is known of both layers by themselves: profiles of features beside each other, and scores. */
function aloneOf(report, pair, a, b) {
  const sides = pair.a === pair.b && a === b ? [[pair.a, a]] : [[pair.a, a], [pair.b, b]];
  const groups = groupsOf(report, (grid) => grid.role !== "pair" && sides.some(([model]) => model === grid.models[0]));
  const cards = groups.map((group) => cardAlone(group, sides)).filter(Boolean);
  return cards.length ? [el("h3", {}, "Both layers by themselves"), el("div", { class: "cards" }, cards)] : [];
}

/** Grids of one title and setting together, in the order in which they come. */
function groupsOf(report, wanted) {
  const groups = new Map();
  for (const grid of report.grids.filter(wanted)) {
    const name = [grid.title, settingsOf(report, grid)].filter(Boolean).join(" · ");
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(grid);
  }
  return [...groups].map(([name, grids]) => ({ name, grids }));
}

function cardAlone({ name, grids }, sides) {
  const held = sides.map(([model, layer]) => [grids.find((grid) => grid.models[0] === model), layer, model])
    .filter(([grid, layer]) => grid && grid.columns.includes(layer));
  if (!held.length) return null;
  const range = rangeOf(held.map(([grid]) => ({ points: [["", ...grid.numbers[grid.main].v]] })));
  const read = ([grid, layer], row, number, i) => {
    const at = placeOf(grid, row, layer);
    const [value, low, high] = at === undefined ? [null] : [number.v[at], number.low?.[at], number.high?.[at]];
    return [grid.role === "profile" ? bar(value, low, high, range, i) : "", `${full(value)} ${interval(low, high)}`];
  };
  const [first] = held[0];
  const refused = tooMany(first.rows.length + first.numbers.length, name);
  if (refused) return refused;
  const rows = first.role === "profile"
    ? first.rows.map((row) => [row, ...held.map((side, i) => el("div", {}, read(side, row, side[0].numbers[side[0].main], i)))])
    : first.numbers.map((number, n) => [plain(number.name), ...held.map((side, i) => el("div", {}, read(side, "", side[0].numbers[n] ?? number, i)))]);
  const heads = held.map(([, layer, model]) => `${model}, layer ${layerName(layer)}`);
  return el("article", { class: "card" }, el("h4", {}, name),
    tableOf("", [first.role === "profile" ? `${first.row_name}: ${plain(first.numbers[first.main].name)}` : "number", ...heads], rows));
}

/**
 * Lines of what was measured between layers of equal relative depth: what a measure shows first, with its controls, whose
 * columns end in its name. The rest may have different units, and would share one axis.
 */
function curvesOf(report, pair) {
  const figures = pair.grids.map((grid) => {
    const main = grid.numbers[grid.main].name;
    const family = grid.numbers.filter((each) => each.name === main || each.name.endsWith(`_${main}`));
    const [last, end] = [grid.rows.length - 1, grid.columns.length - 1];
    const places = grid.rows.map((layer, i) => [layer, placeOf(grid, layer, grid.columns[Math.round(i * end / Math.max(last, 1))])])
      .filter(([, at]) => at !== undefined);
    if (places.length < 2) return null;
    const series = family.map((each) => ({ name: plain(each.name),
      points: places.map(([layer, at]) => [layer, each.v[at], each.low?.[at], each.high?.[at]]) }));
    const title = `${titled(grid, main)} between layers of equal relative depth`;
    return el("figure", {}, el("figcaption", {}, el("strong", {}, title),
      el("span", { class: "settings" }, [direction(pair, grid), grid.variant].filter(Boolean).join(" · "))),
    lines(title, main === "value" ? grid.title : plain(main), series, { legend: series.length > 1 }));
  }).filter(Boolean);
  return figures.length ? [el("h3", {}, "Layers of equal relative depth, with intervals"), el("div", { class: "cards" }, figures)] : [];
}

/** One small chart per feature, or calibration point, with a line for each of the two models. */
function profilesOf(report, pair) {
  const models = [...new Set([pair.a, pair.b])];
  const groups = groupsOf(report, (grid) => grid.role === "profile" && models.includes(grid.models[0]));
  return groups.flatMap(({ name, grids }) => {
    grids.sort((p, q) => models.indexOf(p.models[0]) - models.indexOf(q.models[0]));
    const features = [...new Set(grids.flatMap((grid) => grid.rows))];
    const series = (feature) => grids.map((grid) => ({ name: grid.models[0], points: pointsOf(grid, feature, grid.numbers[grid.main]) }));
    const range = spanOf(features.flatMap(series));
    const unit = plain(grids[0].numbers[grids[0].main].name);
    const charts = features.map((feature) => el("figure", {}, el("strong", {}, feature), lines(`${feature}: ${unit} by layer`, unit, series(feature), { range, legend: false, size: SMALL })));
    return [el("h3", {}, `${name}: ${unit} of each ${grids[0].row_name} by layer`), legendOfSeries(series(features[0])), el("div", { class: "panels" }, charts)];
  });
}
