// All models: features by layers as matrices with one cursor, and the scores of layers, and of a run's steps, as lines.

function drawProfiles(report, place, words) {
  countMarksAnew();
  const shown = (grid) => matches([...grid.models, grid.title, ...grid.results.map((n) => textOf(report.results[n]))].join(" ").toLowerCase(), words);
  const profiles = groupsOf(report, (grid) => grid.role === "profile" && shown(grid));
  const runs = report.results.map((entry, n) => [entry, report.grids.filter((grid) => grid.role === "steps" && grid.results.includes(n) && shown(grid))])
    .filter(([, grids]) => grids.length);
  const scores = groupsOf(report, (grid) => grid.role === "layers" && grid.columns.length > 1 && shown(grid));
  place.hidden = !report.grids.some((grid) => grid.role !== "pair" && grid.columns.length > 1);
  replaceChildren(place, el("h2", { id: "profiles-title" }, "Features and scores of each model, by layer or step"),
    profiles.length + scores.length + runs.length ? "" : el("p", { class: "dim" }, "The search finds none."),
    profiles.flatMap((group) => heatmapsOf(group)), scores.flatMap((group) => scoresOf(group)), runs.flatMap(stepsOf));
}

function heatmapsOf({ name, grids }) {
  const rows = [...new Set(grids.flatMap((grid) => grid.rows))];
  const columns = [...new Set(grids.flatMap((grid) => grid.columns))].sort((p, q) => p - q);
  const cursor = cursorOver(rows, columns, () => {}, (text) => { byId("said").textContent = text; });
  const colours = scaleOf(grids.flatMap((grid) => grid.numbers[grid.main].v), "rising");
  const figures = grids.map((grid) => {
    const number = grid.numbers[grid.main];
    const get = (key) => (row, column) => number[key]?.[placeOf(grid, row, column)];
    return el("figure", {}, el("strong", {}, grid.models[0]), matrix(cursor, {
      title: grid.models[0], label: `${name}: ${plain(number.name)} in ${grid.models[0]}, by ${grid.row_name} and layer`, up: false,
      rowName: grid.row_name, columnName: "layer", value: (row, column) => get("v")(row, column) ?? null,
      ends: (row, column) => [get("low")(row, column), get("high")(row, column)],
      told: (row, column) => `${row}, layer ${layerName(column)}`, colours,
    }));
  });
  return [el("h3", {}, `${name}: ${plain(grids[0].numbers[grids[0].main].name)} of each ${grids[0].row_name}`), el("div", { class: "panels wide" }, figures)];
}

function scoresOf({ name, grids }) {
  const number = (grid) => grid.numbers[grid.main];
  const series = grids.map((grid) => ({ name: grid.models[0], points: pointsOf(grid, "", number(grid)) }));
  const unit = plain(number(grids[0]).name);
  return [el("h3", {}, `${name}: ${unit} of each layer`), el("figure", { style: "max-width:460px" }, lines(`${name}: ${unit} by layer`, unit, series))];
}

/** The numbers of a run that have intervals, from step to step of its training. */
function stepsOf([entry, grids]) {
  const charts = grids.flatMap((grid) => grid.numbers.filter((number) => number.low).map((number) => {
    const unit = [plain(number.name), grid.variant].filter(Boolean).join(", ");
    const series = grid.rows.map((row) => ({ name: row || unit, points: pointsOf(grid, row, number) }));
    return el("figure", {}, lines(`${grid.models[0]}: ${unit} by step`, unit, series, { along: "step" }));
  }));
  return [el("h3", {}, `${entry.kind}: ${grids[0].models[0]} by step `, el("span", { class: "settings" }, entry.settings)), el("div", { class: "panels wide" }, charts)];
}
