// What the page holds: unpacked once, and indexed by pairs of models.

async function unpacked() {
  const bytes = Uint8Array.from(atob(byId("data").textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** What a pair is called, whichever of its models comes first. */
const keyOf = (models) => JSON.stringify([...models].sort());

/** Return the pairs of models that were compared, each once, with the grids of both directions; a is a source. */
function pairsOf(report) {
  const pairs = new Map();
  for (const grid of report.grids) {
    if (grid.role !== "pair") continue;
    const key = keyOf(grid.models);
    if (!pairs.has(key)) pairs.set(key, { key, a: grid.models[0], b: grid.models[1], grids: [] });
    pairs.get(key).grids.push(grid);
  }
  return [...pairs.values()].sort((p, q) => (p.a === p.b) - (q.a === q.b) || q.grids.length - p.grids.length);
}

/** The layers of both models of a pair, over all its grids, from the first to the last. */
function axesOf(pair) {
  const [first, second] = [new Set(), new Set()];
  for (const grid of pair.grids) {
    const turned = isTurned(pair, grid);
    for (const layer of turned ? grid.columns : grid.rows) first.add(layer);
    for (const layer of turned ? grid.rows : grid.columns) second.add(layer);
  }
  return [first, second].map((layers) => [...layers].sort((p, q) => p - q));
}

/** Whether the rows of a grid are the second model's: then its source is that one. */
const isTurned = (pair, grid) => grid.models[0] !== pair.a;

/** The place of a cell in the numbers of a grid, or undefined if it was not computed. */
function placeOf(grid, row, column) {
  if (!grid.places) {
    const width = grid.columns.length;
    grid.places = new Map();
    const cells = grid.cells ?? Array.from({ length: grid.rows.length * width }, (_, i) => i);
    cells.forEach((cell, place) => {
      grid.places.set(JSON.stringify([grid.rows[Math.floor(cell / width)], grid.columns[cell % width]]), place);
    });
  }
  return grid.places.get(JSON.stringify([row, column]));
}

/** The points of a line: a number of a grid in one of its rows, with its interval, from column to column. */
const pointsOf = (grid, row, number) => grid.columns.map((column) => {
  const at = placeOf(grid, row, column);
  return at === undefined ? [column, null] : [column, number.v[at], number.low?.[at], number.high?.[at]];
});

/** The place of a cell for a layer of the first model of a pair and one of the second. */
const placeIn = (pair, grid, a, b) => (isTurned(pair, grid) ? placeOf(grid, b, a) : placeOf(grid, a, b));

/** What can be searched of a result. */
const textOf = (entry) =>
  [entry.kind, entry.key, ...entry.models, entry.settings, entry.date, entry.headline].join(" ").toLowerCase();

const matches = (text, words) => words.every((word) => text.includes(word));

const settingsOf = (report, grid) =>
  [grid.variant, report.results[grid.results[0]].settings].filter(Boolean).join(", ");

/**
 * What tells each grid from those of the same title and direction, as a map: the settings that not all of these have, and
 * the keys of its results where two have the same settings.
 */
function differencesOf(report, grids) {
  const differences = new Map();
  const groups = new Map();
  for (const grid of grids) {
    const name = JSON.stringify([grid.title, grid.models]);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(grid);
  }
  for (const alike of groups.values()) {
    const counts = occurrences(alike.flatMap((grid) => piecesOf(report, grid)));
    const texts = alike.map((grid) => piecesOf(report, grid).filter((piece) => counts.get(piece) < alike.length).join(", "));
    const texted = occurrences(texts);
    const keys = (grid) => grid.results.map((number) => report.results[number].key).join(", ");
    alike.forEach((grid, i) => {
      const isAlone = texted.get(texts[i]) === 1;
      differences.set(grid, isAlone ? texts[i] : [texts[i], keys(grid)].filter(Boolean).join(", "));
    });
  }
  return differences;
}

/** The variant and the settings of a grid, each once. */
const piecesOf = (report, grid) =>
  [...new Set([...grid.variant.split(", "), ...report.results[grid.results[0]].settings.split(/ (?=[\w.@]+=)/)].filter(Boolean))];

/** How often each text occurs. */
function occurrences(texts) {
  const counts = new Map();
  for (const text of texts) counts.set(text, (counts.get(text) ?? 0) + 1);
  return counts;
}
