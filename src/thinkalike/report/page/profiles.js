// All models: features by layers as matrices with one cursor, and the scores of layers as lines.

function drawProfiles(report, place, words) {
  const shown = (grid) => matches([...grid.models, grid.title, ...grid.results.map((n) => textOf(report.results[n]))].join(" ").toLowerCase(), words);
  const profiles = groupsOf(report, (grid) => grid.role === "profile" && shown(grid));
  const scores = groupsOf(report, (grid) => grid.role === "layers" && grid.columns.length > 1 && shown(grid));
  place.hidden = !report.grids.some((grid) => grid.role !== "pair" && grid.columns.length > 1);
  place.replaceChildren(el("h2", { id: "profiles-title" }, "Features and scores of each model, by layer"),
    profiles.length + scores.length ? "" : el("p", { class: "dim" }, "The search finds none."),
    ...profiles.flatMap((group) => heatmapsOf(group)), ...scores.flatMap((group) => scoresOf(group)));
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
      title: grid.models[0], label: `${name}: ${plain(number.name)} in ${grid.models[0]}, features by layers`, up: false,
      rowName: "feature", columnName: "layer", value: (row, column) => get("v")(row, column) ?? null,
      ends: (row, column) => [get("low")(row, column), get("high")(row, column)],
      told: (row, column) => `${row}, layer ${layerName(column)}`, colours,
    }));
  });
  return [el("h3", {}, `${name}: ${plain(grids[0].numbers[grids[0].main].name)} of each feature`), el("div", { class: "panels wide" }, figures)];
}

function scoresOf({ name, grids }) {
  const number = (grid) => grid.numbers[grid.main];
  const series = grids.map((grid) => ({ name: grid.models[0], points: grid.columns.map((layer) => {
    const at = placeOf(grid, "", layer);
    return at === undefined ? [layer, null] : [layer, number(grid).v[at], number(grid).low?.[at], number(grid).high?.[at]];
  }) }));
  const unit = plain(number(grids[0]).name);
  return [el("h3", {}, `${name}: ${unit} of each layer`), el("figure", { style: "max-width:460px" }, lines(`${name}: ${unit} by layer`, unit, series))];
}
